"""`vramplan compare` and `vramplan scale`: runs side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import (
    Configs,
    EngineVersion,
    Format,
    From,
    IgnoreUnknown,
    JobOfFile,
    Print,
    Profiles,
    Quiet,
    Svg,
)

Jobs = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="FILE[#NAME]",
        help="Compare the jobs of a job file, a matrix of it unfolded; or one of them, which lists vary.",
    ),
]
To = Annotated[int | None, typer.Option("--to", metavar="N", min=1, help="The last number of GPUs; 64 without it.")]


@with_job
@done_by("vramplan.cli.runs.compare:compare")
def compare(
    given: dict[str, Any],
    job: Jobs = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    svg: Svg = None,
) -> None:
    """Puts runs side by side: any option may be a list, and every combination is a row.

    Values are separated by commas, or by semicolons where a value has commas itself.
    `--gpu all` is every GPU whose rent is published (8xall: eight of each), whatever --price says.
    A file of a training program, or a job of a job file, may stand for the options that are the same in every row.
    The table says whether each fits, its memory, rate and cost; below it stand the fastest and the cheapest that fit.

    \b
    Examples:
      vramplan compare -m llama-3.1-8b -g rtx-4090,a100-80gb,h100 --lora
      vramplan compare -m gpt2-xl -g a100 --gpus 1,2,4,8 --sharding fsdp,zero3
      vramplan compare -m llama-3-8b -g 8xh100 --fsdp --micro-batch 1,2,4 --format csv
      vramplan compare -m llama-3.1-8b -g a100,h100 --qlora --samples 52k --budget 20
      vramplan compare -m llama-3.1-70b -g all --qlora
      vramplan compare --job training.yaml --svg jobs.svg
      vramplan compare axolotl.yaml --gpu rtx-4090,a100-80gb

    \b
    Exit codes: 0 one of them fits, 2 bad input, 3 none fits.
    """


@with_job
@done_by("vramplan.cli.runs.compare:scale")
def scale(
    given: dict[str, Any],
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    to: To = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    svg: Svg = None,
) -> None:
    """Puts the same run on 1, 2, 4, ... GPUs: what each adds, what it costs, and where to stop.

    --gpus names the counts instead; a single number is the last of them, and one before the GPU then the first.
    Several GPUs share the states by FSDP unless --sharding says otherwise, and those of a file as the file says.
    The file is one of a training program, or a job of a job file; options replace what it says.
    Each row is the answer of `fit`. Programs may train other number formats on one GPU, and the output says so.

    \b
    Examples:
      vramplan scale -m llama-3.1-8b -g h100 --to 64
      vramplan scale llama-3.1-8b 8xh100 --gpus 64
      vramplan scale -m gpt2-xl -g a100 --sharding ddp --gpus 1,2,3,4 --tokens 10B
      vramplan scale axolotl.yaml -g a100-80gb --to 16

    \b
    Exit codes: 0 one of them fits, 2 bad input, 3 none fits.
    """
