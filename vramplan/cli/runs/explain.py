"""What `vramplan explain` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vramplan.answers.explanation import explain as explanation_of
from vramplan.cli import named
from vramplan.cli.output import emit, output
from vramplan.cli.runs.jobs import asked_of, job_of
from vramplan.errors import UsageError


def explain(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    tensor: str | None,
    block: int | None,
    time: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan explain` with the values of its options."""
    to = output(output_format, key, quiet)
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    resolved = job_of(given, [Path(folder) for folder in profiles or ()], job, asked)
    if time:
        if tensor is not None or block is not None:
            raise UsageError(
                "--time shows every block and no tensor", key="--time", hint="leave out --tensor and --block"
            )
        emit("explain-time", named("vramplan.answers.roofline:roofline")(resolved), to)
        return
    emit("explain", explanation_of(resolved, block=block, tensor=tensor), to)
