"""`vramplan timeline`: live memory over one training step, as a picture."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vramplan.cli import done_by
from vramplan.cli.job_options import with_job
from vramplan.cli.options import Configs, EngineVersion, Format, From, IgnoreUnknown, JobOfFile, Print, Profiles, Quiet

FEWEST_ROWS, MOST_ROWS = 4, 200


@with_job
@done_by("vramplan.cli.runs.timeline:timeline")
def timeline(
    given: dict[str, Any],
    job: JobOfFile = None,
    config: Configs = None,
    program: From = None,
    version: EngineVersion = None,
    ignore_unknown: IgnoreUnknown = False,
    svg: Annotated[
        str | None,
        typer.Option(
            "--svg", metavar="FILE", help="Write the picture as SVG, over what is there; - prints it instead."
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the JSON answer, over what is there.")
    ] = None,
    height: Annotated[
        int | None,
        typer.Option(
            "--height",
            metavar="ROWS",
            min=FEWEST_ROWS,
            max=MOST_ROWS,
            help="Rows of the chart; 16 below 100 columns, 22 below 140, else 26.",
        ),
    ] = None,
    zoom: Annotated[
        bool, typer.Option("--zoom", help="Begin the memory axis at what is alive all the time, not at zero.")
    ] = False,
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Draws the memory that is allocated over one training step: forward, backward, optimizer step.

    The job is judged as `fit` does it; the highest column is the peak of `fit`.

    \b
    Examples:
      vramplan timeline --model gpt2-xl --gpu v100
      vramplan timeline -m gpt2-xl -g v100 --zoom --height 30
      vramplan timeline -m llama-3-8b -g h100 --svg step.svg --json step.json
      vramplan timeline -m gpt2-xl -g v100 --format csv > samples.csv

    \b
    Exit codes: 0 answered, also for a job that does not fit; 2 bad input.
    """
