"""What `vramplan read` does."""

from __future__ import annotations

from vramplan.cli.output import emit, output
from vramplan.cli.runs.listings import folders_of
from vramplan.configs.reading import Wanted, read_file


def read(
    file: str,
    program: str | None,
    version: str | None,
    gpus: int | None,
    ignore_unknown: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan read` with the values of its options."""
    to = output(output_format, key, quiet)
    wanted = Wanted(program, version, gpus, ignore_unknown, folders_of(profiles))
    emit("read", read_file(file, wanted), to)
