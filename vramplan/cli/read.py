"""`vramplan read`: the job that a configuration file of a training program means."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.options import EngineVersion, Format, From, IgnoreUnknown, Print, Profiles, Quiet


@done_by("vramplan.cli.runs.read:read")
def read(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Configuration files, or scripts, of one job; - is standard input."),
    ],
    program: From = None,
    version: EngineVersion = None,
    gpus: Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="How many GPUs run it.")] = None,
    sharding: Annotated[
        str | None, typer.Option("--sharding", metavar="WORD", help="How they share the model, as in fit.")
    ] = None,
    ignore_unknown: IgnoreUnknown = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Print the job that configuration files of a training program mean, each value with the line it came from.

    Programs are parsed, never executed.

    \b
    Examples:
      vramplan read axolotl.yaml
      vramplan read train_gpt3.sh --from megatron-lm --gpus 16
      vramplan read accelerate.yaml sft.yaml
      vramplan read axolotl.yaml --print job

    \b
    Exit codes: 0 it was read, 2 something in the file is not understood.
    """
