"""`vramplan fit`: from a model and a GPU to a verdict."""

from __future__ import annotations

from typing import Any

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import (
    AllStages,
    Configs,
    Details,
    Emit,
    EmitTo,
    EngineVersion,
    Force,
    Format,
    From,
    IgnoreUnknown,
    JobOfFile,
    Max,
    Print,
    Profiles,
    Quiet,
    Strict,
)


@with_job
@done_by("vramplan.cli.runs.fit:fit")
def fit(
    given: dict[str, Any],
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    largest: Max = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    strict: Strict = False,
    all_stages: AllStages = False,
    details: Details = False,
    engine: Emit = None,
    folder: EmitTo = None,
    force: Force = False,
) -> None:
    """Says whether a training run fits, what fills the memory at the worst moment, and how to run it.

    What is left open (micro-batch, accumulation, checkpointing) is chosen for you; what is given is judged as given.
    The answer is one screen, in the settings of the training program; --details prints every table.

    \b
    Examples:
      vramplan fit --model gpt2-xl --gpu v100
      vramplan fit -m llama-3-8b -g h100 --seq 4096 --gpus 8 --sharding fsdp
      vramplan fit -m llama-3-70b -g 128xh100 --tensor 8 --pipeline 2
      vramplan fit -m llama-3-8b -g h100 --gpus auto
      vramplan fit llama-3-8b -g rtx-4090 --qlora --max sequence
      vramplan fit llama-3.1-8b 8xa100-80gb --fsdp --seq-len 8k
      vramplan fit -m ./config.json -g '24 GiB' --micro-batch 4 --format json
      vramplan fit -m gpt2-xl -g v100 --print recommended.micro_batch_size
      vramplan fit llama-3.1-8b -g 8xa100-80gb --fsdp --emit axolotl
      vramplan fit -m gpt2-xl -g v100 --base-batch-size 256 --base-lr 1e-4
      vramplan fit -m 1.5B -g v100 --runtime textbook --activation-bytes '65 GB'

    \b
    Exit codes: 0 fits, 2 bad input, 3 does not fit (certainly or likely),
    4 tight (with --strict).
    """
