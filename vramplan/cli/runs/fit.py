"""What `vramplan fit` does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from vramplan.answers.fit import answered
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.cli.output import OutputChoice, emit, output
from vramplan.errors import UsageError
from vramplan.results import FitResult

LOOKED_FOR = frozenset({"remedies", "warnings"})  # keys of the answer that say something of remedies


def fit(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    largest: str | None,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
    strict: bool,
    all_stages: bool,
    details: bool,
    engine: str | None,
    folder: str | None,
    force: bool,
) -> None:
    """Run `vramplan fit` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = [Path(one) for one in profiles or ()]
    emission, asked = None, None
    if engine or folder or force:
        emission = named("vramplan.cli.runs.emit:emission_of")(engine, folder, force, to)
        if not config and job is None:
            given = named("vramplan.cli.runs.emit:given_for")(given, emission)
    enough = _remedies_of_use(to, details=details) if emission is None else None
    if config or program or version or ignore_unknown:
        asked = named("vramplan.cli.runs.configs:asked_of")(config, job, program, version, (ignore_unknown, quiet))
        result = named("vramplan.cli.runs.configs:answer_of")(given, folders, asked, largest, enough)
    elif job is None:
        require(given)
        result = answered(as_job(given), folders, largest, enough=enough)
    else:
        result = named("vramplan.cli.runs.jobs:answer_of")(given, folders, job, largest, enough)
    code = result.exit_code(strict=strict)
    if all_stages:
        if result.stages is None:
            raise UsageError("there is no pipeline", key="--all-stages", hint="--pipeline 4")
        result = result._replace(lists_stages=True)
    if emission is not None:
        emission = emission.of(given, folders, asked)
        again = None
        if asked is None and job is None:  # a file has said what it means

            def again(more: dict[str, Any]) -> FitResult:
                return answered(as_job({**given, **more}), folders, largest)

        write = named("vramplan.cli.runs.emit:emitted")
        raise typer.Exit(write(result, emission, folders, given, again, strict=strict))
    emit("fit", result, to, details=details or all_stages, exit_code=code)
    raise typer.Exit(code)


def _remedies_of_use(to: OutputChoice, *, details: bool) -> int | None:
    """How many of the remedies are shown, which take longer than all the rest; None: all."""
    if to.quiet:
        return 0
    if to.key is not None:
        roots = {re.split(r"\W", key.strip(), maxsplit=1)[0] for key in to.key.split(",")}
        return None if roots & LOOKED_FOR else 0
    if to.format != "text" or details:
        return None
    shown: int = named("vramplan.report.summary:REMEDIES")
    return shown
