"""What `vramplan timeline` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vramplan.answers.timeline import timeline as timeline_of
from vramplan.cli.output import dumps, emit, output, write
from vramplan.cli.runs.jobs import asked_of, job_of
from vramplan.cli.save import check_picture, save
from vramplan.errors import UsageError
from vramplan.planner.decision import ALWAYS, decide
from vramplan.report.timeline import document
from vramplan.report.timeline_chart import Drawing
from vramplan.report.timeline_svg import svg_of


def timeline(
    given: dict[str, Any],
    job: str | None,
    config: list[str] | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    svg: str | None,
    json_file: str | None,
    height: int | None,
    zoom: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan timeline` with the values of its options."""
    to = output(output_format, key, quiet)
    check_picture(svg, "--svg")
    _check(svg, json_file, to)
    _check_drawn(svg, height, zoom, to)
    asked = asked_of(config, job, program, version, (ignore_unknown, quiet))
    resolved = job_of(given, [Path(folder) for folder in profiles or ()], job, asked)
    drawing = Drawing(timeline_of(decide(resolved, closer_from=ALWAYS)), height, zoom)
    if svg is not None:
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
    chart = svg != "-" and to.format in ("text", "markdown") and to.key is None and not to.quiet
    if height is not None and not chart:
        hint = "--format text or markdown draws it" if svg != "-" else "the SVG has its own size"
        raise UsageError("no chart is printed whose rows it could set", key="--height", hint=hint)
    if zoom and not chart and svg is None:
        raise UsageError("nothing is drawn", key="--zoom", hint="--format text or --svg FILE draws it")


def _check(svg: str | None, json_file: str | None, to: Any) -> None:
    """Two things cannot go to one place."""
    if json_file == "-":
        raise UsageError("- is not a file", key="--json", hint="--format json prints the JSON answer")
    if svg == "-" and (to.format != "text" or to.key is not None or to.quiet):
        others = "--format" if to.format != "text" else "--print" if to.key is not None else "--quiet"
        raise UsageError(f"- prints the picture, and {others} asks for something else", key="--svg", hint="name a file")
    if svg and json_file and os.path.realpath(svg) == os.path.realpath(json_file):
        raise UsageError("names the file of --svg", key="--json", hint="they need a file each")
