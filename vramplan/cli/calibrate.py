"""`vramplan calibrate`: the software stack of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from vramplan.cli import done_by
from vramplan.cli.options import Format, Print, Profiles, Quiet


@done_by("vramplan.cli.runs.calibrate:calibrate")
def calibrate(
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - is standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Runs a few small steps on the GPU at hand, and writes a profile of this machine's software stack.

    It has the CUDA context, the workspace of cuBLAS and, with two GPUs, a communicator of NCCL as they are here.
    Answers about GPUs of this architecture take them, and their range is narrower. Needs PyTorch. The profile goes to
    your own folder of profiles (`vramplan profiles path`) unless --output names a file.

    \b
    Examples:
      vramplan calibrate
      vramplan calibrate --force
      vramplan calibrate --output - --quiet

    \b
    Exit codes: 0 it was written; 2 no PyTorch, no GPU, or a file that is there.
    """
