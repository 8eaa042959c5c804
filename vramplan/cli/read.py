"""`vramplan read`: the job that a configuration file of a training program means."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.options import Format, Print, Profiles, Quiet

From = Annotated[
    str | None,
    typer.Option("--from", metavar="PROGRAM", help="The program that the file is for; without it, its keys say so."),
]
EngineVersion = Annotated[
    str | None,
    typer.Option("--engine-version", metavar="VERSION", help="The release of the program whose defaults hold."),
]
IgnoreUnknown = Annotated[
    bool, typer.Option("--ignore-unknown", help="Go on where settings are not understood; they are listed.")
]


@done_by("vramplan.cli.runs.read:read")
def read(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A configuration file, or a script; - is standard input.")
    ],
    program: From = None,
    version: EngineVersion = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="How many GPUs run it.")] = None,
    ignore_unknown: IgnoreUnknown = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Print the job that a configuration file of a training program means, each value with the line it came from.

    Programs are parsed, never executed.

    \b
    Examples:
      vramplan read axolotl.yaml
      vramplan read train_gpt3.sh --from megatron-lm --gpus 64
      vramplan read config.yaml --format json --print job

    \b
    Exit codes: 0 it was read, 2 something in the file is not understood.
    """
