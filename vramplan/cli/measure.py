"""`vramplan measure`: real steps of a job beside its prediction."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Format, Print, Profiles, Quiet

MOST_STEPS = 1000


@with_job
@done_by("vramplan.cli.runs.measure:measure")
def measure(
    given: dict[str, Any],
    grid: Annotated[
        str | None,
        typer.Option("--grid", metavar="FILE", help="Run every job of a job file that the output does not have."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Without a GPU: one step on tensors without data, storages counted.")
    ] = False,
    steps: Annotated[
        int,
        typer.Option(
            "--iterations", metavar="N", min=1, max=MOST_STEPS, help="Measured optimizer steps, after a first one."
        ),
    ] = 3,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The job file to which measured cases are appended.")
    ] = "measured.yaml",
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Runs a few real steps of a job on the GPU at hand, and puts what it took beside the prediction.

    Needs PyTorch and Transformers, for adapters PEFT too: pip install 'vramplan[measure]'. The model has random
    weights; each job runs in a process of its own. What the allocator reserves is simulated. A run out of memory is a
    result.

    \b
    Examples:
      vramplan measure --model gpt2 --micro-batch 4
      vramplan measure -m llama-3.2-1b --precision pure-bf16 --iterations 10
      vramplan measure -m gpt2 -g v100 --trace --print results.0.relative_error
      vramplan measure --grid training.yaml -o measured.yaml

    \b
    Exit codes: 0 all were run, also out of memory; 2 bad input or a job that
    cannot be run.
    """
