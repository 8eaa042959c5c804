"""`vramplan walkthrough`: the textbook's four steps to fit a model on a GPU, beside the replay of each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Details, Format, Print, Profiles, Quiet


@with_job
@done_by("vramplan.cli.runs.walkthrough:walkthrough")
def walkthrough(
    given: dict[str, Any],
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters", metavar="N", help="The count that a text rounds to, as in 1.5B; textbook side only."
        ),
    ] = None,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
    details: Details = False,
) -> None:
    """Tells how texts fit a model on a GPU in four steps, with what a replay of each step says beside it.

    fp32, then mixed precision, then checkpointing, then accumulation; and why the two sides differ.
    Without options it is the run of the texts with the figures that they print: gpt2-xl on a v100, micro-batch 32.

    \b
    Examples:
      vramplan walkthrough
      vramplan walkthrough --details
      vramplan walkthrough --parameters 1.5B --activation-bytes '65 GB'
      vramplan walkthrough -m llama-3.2-1b -g a100-40gb --micro-batch 8 --seq 2048
      vramplan walkthrough --gpus 8 --steps 4 --format json

    \b
    Exit codes: 0 answered, whatever the verdicts; 2 bad input.
    """
