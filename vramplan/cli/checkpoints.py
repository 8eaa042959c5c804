"""`vramplan checkpoints`: where to put the checkpoints of a model under a budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Configs, EngineVersion, Format, From, IgnoreUnknown, JobOfFile, Print, Profiles, Quiet


@with_job
@done_by("vramplan.cli.runs.checkpoints:checkpoints")
def checkpoints(
    given: dict[str, Any],
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="SIZE",
            help="Allocated memory that the step may reach, as in '20 GiB'; what fits the GPU if left out.",
        ),
    ] = None,
    emit_as: Annotated[
        str | None,
        typer.Option(
            "--emit",
            metavar="python",
            help="Write the code that places the checkpoints: those of --checkpointing, else the optimal ones.",
        ),
    ] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Where to put activation checkpoints: none, sqrt, every:K, full and the optimal placement under one budget.

    The optimal placement recomputes least among all within the budget. The peak of each is the replay's; beside
    it stands the k + L/k of the textbooks. Without --gpu the budget stands for the size of the card.

    \b
    Examples:
      vramplan checkpoints --model gpt2-xl --gpu v100 --micro-batch 4
      vramplan checkpoints -m llama-3.2-1b --micro-batch 8 --budget '40 GiB'
      vramplan checkpoints -m gpt2 -g t4 --micro-batch 16 --print flags
      vramplan checkpoints -m gpt2-xl -g v100 --checkpointing sqrt --emit python

    \b
    Exit codes: 0 a placement is within the budget, 2 bad input, 3 none is.
    """
