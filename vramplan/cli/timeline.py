"""`vramplan timeline`: live memory over one training step, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.job_options import job_of, with_job
from vramplan.cli.options import Format, Print, Profiles, Quiet

FEWEST_ROWS, MOST_ROWS = 4, 200


@with_job
def timeline(
    given: dict[str, Any],
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
    from vramplan.answers.timeline import timeline as timeline_of
    from vramplan.cli.output import dumps, emit, output, write
    from vramplan.cli.save import save
    from vramplan.planner.decision import decide
    from vramplan.report.timeline import document
    from vramplan.report.timeline_chart import Drawing

    to = output(output_format, key, quiet)
    _check(svg, json_file, to)
    _check_drawn(svg, height, zoom, to)
    job = job_of(given, [Path(folder) for folder in profiles or ()])
    drawing = Drawing(timeline_of(decide(job)), height, zoom)
    if svg is not None:
        from vramplan.report.timeline_svg import svg_of

        picture = svg_of(drawing)
        if svg == "-":
            write(picture)
        else:
            save(svg, picture, "--svg")
    if json_file is not None:
        save(json_file, dumps(document(drawing), "json"), "--json")
    if svg != "-":
        emit("timeline", drawing, to)


def _check_drawn(svg: str | None, height: int | None, zoom: bool, to: Any) -> None:
    """An option of a picture that nobody draws would be ignored."""
    from vramplan.errors import UsageError

    chart = svg != "-" and to.format in ("text", "markdown") and to.key is None and not to.quiet
    if height is not None and not chart:
        hint = "--format text or markdown draws it" if svg != "-" else "the SVG has its own size"
        raise UsageError("no chart is printed whose rows it could set", key="--height", hint=hint)
    if zoom and not chart and svg is None:
        raise UsageError("nothing is drawn", key="--zoom", hint="--format text or --svg FILE draws it")


def _check(svg: str | None, json_file: str | None, to: Any) -> None:
    """Two things cannot go to one place."""
    import os

    from vramplan.errors import UsageError

    if json_file == "-":
        raise UsageError("- is not a file", key="--json", hint="--format json prints the JSON answer")
    if svg == "-" and (to.format != "text" or to.key is not None or to.quiet):
        others = "--format" if to.format != "text" else "--print" if to.key is not None else "--quiet"
        raise UsageError(f"- prints the picture, and {others} asks for something else", key="--svg", hint="name a file")
    if svg and json_file and os.path.realpath(svg) == os.path.realpath(json_file):
        raise UsageError("names the file of --svg", key="--json", hint="they need a file each")
