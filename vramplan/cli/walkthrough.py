"""`vramplan walkthrough`: the textbook's four steps to fit a model on a GPU, beside the replay of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.job_options import as_job, with_job
from vramplan.cli.options import Format, Print, Profiles, Quiet


@with_job
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
) -> None:
    """Tells how texts fit a model on a GPU in four steps, with what a replay of each step says beside it.

    fp32, then mixed precision, then checkpointing, then accumulation; and why the two sides differ.
    Without options it is the run of the texts: gpt2-xl on a v100 with micro-batch 32.

    \b
    Examples:
      vramplan walkthrough
      vramplan walkthrough --parameters 1.5B --activation-bytes '65 GB' --checkpoint-factor 4
      vramplan walkthrough -m llama-3.2-1b -g a100-40gb --micro-batch 8 --seq 2048
      vramplan walkthrough --gpus 8 --steps 4 --format json

    \b
    Exit codes: 0 answered, whatever the verdicts; 2 bad input.
    """
    from vramplan.answers.walkthrough import walkthrough as tell
    from vramplan.cli.output import emit, output

    to = output(output_format, key, quiet)
    folders = [Path(folder) for folder in profiles or ()]
    emit("walkthrough", tell(as_job(given), parameters=_count(parameters), profile_dirs=folders), to)


def _count(text: str | None) -> int | None:
    """A number of parameters; None if there is none."""
    if text is None:
        return None
    from vramplan.errors import UsageError
    from vramplan.job.counts import parameter_count

    count = parameter_count(text)
    if count is None:
        raise UsageError(f"{text!r} is not a number of parameters", key="--parameters", hint="1.5B, 1.5e9, 1500000000")
    return count
