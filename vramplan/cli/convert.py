"""`vramplan convert`: the file of one training program as that of another."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Configs, EngineVersion, Force, From, IgnoreUnknown, Profiles, Quiet


@with_job
@done_by("vramplan.cli.runs.converting:convert")
def convert(
    given: dict[str, Any],
    config: Configs = None,
    engine: Annotated[
        str | None,
        typer.Option("--to", metavar="PROGRAM", help="The program whose file is written: trl, axolotl, torchtune, ..."),
    ] = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    folder: Annotated[
        str | None, typer.Option("--emit-to", metavar="FOLDER", help="Write all files of the program into a folder.")
    ] = None,
    force: Force = False,
    profiles: Profiles = None,
    quiet: Quiet = False,
) -> None:
    """Writes the file of one training program as that of another: the same job, with the launch command.

    Options win over the file. What the other program has no setting for is an error that names the nearest it has.
    With --gpu the file says what the run needs of it; without one nothing is judged.

    \b
    Examples:
      vramplan convert axolotl.yaml --to llama-factory
      vramplan convert accelerate.yaml sft.yaml --to llama-factory --gpu h100
      vramplan convert axolotl.yaml --to accelerate --gpus 8 --sharding fsdp --precision fsdp-bf16
      vramplan convert axolotl.yaml --to trl --emit-to configs

    \b
    Exit codes: 0 it is written, 2 bad input, or the other program cannot say it.
    """
