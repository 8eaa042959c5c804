"""What `vramplan checkpoints` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from vramplan.answers.placement import placement_code, placements_of
from vramplan.cli.output import emit, output, write
from vramplan.cli.runs.jobs import asked_of, job_of
from vramplan.errors import InputError, UsageError
from vramplan.report.placement_code import python
from vramplan.results import code_of
from vramplan.units import parse_size_bytes


def checkpoints(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    budget: str | None,
    emit_as: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan checkpoints` with the values of its options."""
    to = output(output_format, key, quiet)
    budget_bytes = None if budget is None else _budget_bytes(budget)
    if given["gpu"] is None and job is None:
        if budget is None:
            raise UsageError("one of them is needed", key="--gpu or --budget", hint="a GPU, or a size as in '24 GiB'")
        given = {**given, "gpu": budget}
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    resolved = job_of(given, [Path(folder) for folder in profiles or ()], job, asked)
    if emit_as is not None:
        if emit_as != "python":
            raise UsageError(f"{emit_as!r} is no language of placements", key="--emit", hint="python")
        if to.key is not None or to.format != "text" or to.quiet:
            hint = "leave out --format, --print and --quiet"
            raise UsageError("it writes code and nothing beside it", key="--emit", hint=hint)
        write(python(placement_code(resolved, budget_bytes)))
        return
    result = placements_of(resolved, budget_bytes)
    emit("checkpoints", result, to)
    raise typer.Exit(code_of(result.verdict, strict=False))


def _budget_bytes(text: str) -> int:
    try:
        return parse_size_bytes(text, rounding="down")
    except InputError as error:
        raise InputError([problem._replace(key="--budget") for problem in error.problems]) from None
