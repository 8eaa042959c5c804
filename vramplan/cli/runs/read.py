"""What `vramplan read` does."""

from __future__ import annotations

from typing import Any

from vramplan.cli.output import emit, output
from vramplan.cli.runs.configs import JOB, kind_of
from vramplan.cli.runs.listings import folders_of
from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted
from vramplan.errors import UsageError


def read(
    files: list[str],
    program: str | None,
    version: str | None,
    gpus: int | None,
    sharding: str | None,
    ignore_unknown: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan read` with the values of its options."""
    to = output(output_format, key, quiet)
    own = next((path for path in files if program is None and kind_of(path) == JOB), None)
    if own is not None:
        raise UsageError("is a job file of vramplan already", key=own, hint="fit, check, plan and explain take it")
    beside: dict[str, Any] = {}
    if sharding is not None:
        beside["parallel.sharding"] = sharding
    wanted = Wanted(program, version, gpus, ignore_unknown, folders_of(profiles), beside)
    emit("read", read_files(files, wanted), to)
