"""What `vramplan fit` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from vramplan.answers.fit import answered
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.cli.output import emit, output
from vramplan.errors import UsageError


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
) -> None:
    """Run `vramplan fit` with the values of its options."""
    to = output(output_format, key, quiet)
    folders = [Path(folder) for folder in profiles or ()]
    if config or program or version or ignore_unknown:
        asked = named("vramplan.cli.runs.configs:asked_of")(config, job, program, version, (ignore_unknown, quiet))
        result = named("vramplan.cli.runs.configs:answer_of")(given, folders, asked, largest)
    elif job is None:
        require(given)
        result = answered(as_job(given), folders, largest)
    else:
        result = named("vramplan.cli.runs.jobs:answer_of")(given, folders, job, largest)
    code = result.exit_code(strict=strict)
    if all_stages:
        if result.stages is None:
            raise UsageError("there is no pipeline", key="--all-stages", hint="--pipeline 4")
        result = result._replace(lists_stages=True)
    emit("fit", result, to, details=details or all_stages, exit_code=code)
    raise typer.Exit(code)
