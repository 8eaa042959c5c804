"""`vramplan schema`: the JSON Schemas of files and answers."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by


@done_by("vramplan.cli.runs.schema:schema")
def schema(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="job-file, or the command of an answer.")] = "job-file",
) -> None:
    """The JSON Schema of a job file, or of what a command prints with --format json.

    \b
    Examples:
      vramplan schema > job-file.schema.json
      vramplan schema fit

    \b
    Exit codes: 0 it was printed, 2 there is no such schema.
    """
