"""`vramplan plan`: the search for the fastest way to run a job."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import (
    Configs,
    Emit,
    EmitTo,
    EngineVersion,
    Force,
    Format,
    From,
    IgnoreUnknown,
    JobOfFile,
    Print,
    Profiles,
    Quiet,
    Svg,
)

Exclude = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude",
        metavar="OPTION[=VALUE]",
        help="Leaves a choice out, as in offload=optimizer, or all of offload; several times.",
    ),
]

Within = Annotated[
    float,
    typer.Option(
        "--within",
        min=10.0,
        max=100.0,
        metavar="PERCENT",
        help="How much slower than the fastest plan others may be, to be looked for; 100: all of them.",
    ),
]


@with_job
@done_by("vramplan.cli.runs.plan:plan")
def plan(
    given: dict[str, Any],
    exclude: Exclude = None,
    within: Within = 10.0,
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    svg: Svg = None,
    engine: Emit = None,
    folder: EmitTo = None,
    force: Force = False,
) -> None:
    """Searches for the fastest way to run a job: sharding, parallelism, attention, checkpointing, loss, batch.

    What an option gives is pinned, and a list (--optimizer adamw,adamw-8bit) is tried value by value.
    Everything else that is open is tried in every combination. What is shown is what `fit` answers; what a bound says
    is more than 10 % slower than the fastest is passed over (--within looks further).
    `--runtime all` tries every program that has the model.
    It prints the fastest plan that fits for certain (the least complex within 5 % of the highest rate), the simple
    one (within 10 %), those that nothing beats in both memory and rate, and what each choice of the fastest bought.
    With --emit it writes the fastest that the program has settings for.

    Of a file of a training program, or a job of a job file, the model, the length, the batch of a step and what is
    trained are pinned.

    \b
    Examples:
      vramplan plan -m llama-3.2-1b -g l4 --gpus 8
      vramplan plan -m gpt2-xl -g v100 --global-batch 512 --within 50
      vramplan plan -m llama-2-13b -g a100 --gpus 16 --runtime megatron
      vramplan plan -m llama-3.1-8b -g 8xh100 --sharding fsdp --emit axolotl
      vramplan plan -m llama-3.2-3b -g 8xa100 --exclude compile=true --exclude sharding=ddp
      vramplan plan -m gpt2-xl -g rtx-4090 --runtime all --optimizer adamw,adamw-8bit

    \b
    Exit codes: 0 a plan fits, 2 bad input, 3 none fits, 130 interrupted (with the best so far).
    """
