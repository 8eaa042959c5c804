"""What is said about a timeline: the JSON document, the page for a person, rows, and Markdown."""

from __future__ import annotations

from csv import writer as csv_writer
from io import StringIO
from typing import Any

from vramplan.report import markdown as page
from vramplan.report.headline import NARROWEST, headline
from vramplan.report.lines import Cell, Column, Line, Span, table, to_plain
from vramplan.report.memory import ShownFigures
from vramplan.report.numbers import apportion, gib_up, text_of
from vramplan.report.timeline_chart import WIDEST, Drawing, chart, letters
from vramplan.report.timeline_scale import peak_words
from vramplan.results import SCHEMA_VERSION
from vramplan.results.frozen import plain
from vramplan.results.timeline import Timeline
from vramplan.version import __version__

PAGE_WIDTH = 100  # of the chart in a Markdown page


def document(drawing: Drawing) -> dict[str, Any]:
    """The answer of `vramplan timeline`; the samples are columns of equal length."""
    timeline = drawing.timeline
    fit, history = timeline.fit, timeline.history
    samples = history.samples
    peak = samples[history.peak_sample]
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": fit.name,
        "verdict": fit.verdict,
        "job": plain(fit.job),
        "capacity_bytes": fit.capacity_bytes,
        "usable_bytes": fit.usable_bytes,
        "allocated_limit_bytes": timeline.allocated_limit_bytes,
        "peak": {
            "allocated_bytes": peak.allocated_bytes,
            "device_bytes": fit.peak.device_bytes,
            "phase": peak.phase,
            "block": peak.block,
            "operator": peak.operator,
            "sample": history.peak_sample,
        },
        "components": [
            {"name": part.name, "bytes": part.bytes, "most_bytes": part.most_bytes} for part in history.components
        ],
        "phases": [phase._asdict() for phase in history.phases],
        "samples": {
            "phase": [sample.phase for sample in samples],
            "block": [sample.block for sample in samples],
            "operator": [sample.operator for sample in samples],
            "allocated_bytes": [sample.allocated_bytes for sample in samples],
            "components": [
                {"name": part.name, "bytes": [sample.components[place] for sample in samples]}
                for place, part in enumerate(history.components)
            ],
        },
        "warnings": list(fit.warnings),
    }


def text(drawing: Drawing, *, width: int | None) -> list[Line]:
    """The verdict, the picture, what is in it at the peak, and the phases."""
    width = max(NARROWEST, min(width or 80, WIDEST))
    timeline = drawing.timeline
    return [
        *headline(timeline.fit, ShownFigures(timeline.fit), width),
        (),
        *chart(drawing, width),
        (),
        *_legend(timeline, width),
        (),
        *_phases(timeline, width),
    ]


def csv(drawing: Drawing) -> str:
    """One row per sample."""
    history = drawing.timeline.history
    to = StringIO()
    writer = csv_writer(to, lineterminator="\n")
    names = [f"{part.name}_bytes" for part in history.components]
    writer.writerow(["phase", "block", "operator", "allocated_bytes", *names])
    for sample in history.samples:
        block = "" if sample.block is None else sample.block
        writer.writerow([sample.phase, block, sample.operator, sample.allocated_bytes, *sample.components])
    return to.getvalue()


def markdown(drawing: Drawing) -> str:
    """The verdict, the picture in letters, what is in it at the peak, and the phases."""
    timeline = drawing.timeline
    title = f"### Live memory over one step: peak in {page.text(peak_words(timeline))}"
    parts = [[page.text(cell.text) for cell in map(_span, row[1:])] for row in _parts(timeline)]
    marks = [mark.plain or mark.text for mark in letters(timeline).values()]
    parts = [[mark, *row] for mark, row in zip([*marks, "="], parts, strict=True)]
    return page.page(
        [
            page.headline(timeline.fit, ShownFigures(timeline.fit)),
            [title, "", "```text", to_plain(chart(drawing, PAGE_WIDTH)).removesuffix("\n"), "```"],
            page.table(("", "component", "GiB at the peak:", "most GiB:"), parts),
            page.table(("phase", "start GiB:", "peak GiB:", "end GiB:", "operators:"), _phase_rows(timeline)),
        ]
    )


def _span(cell: Cell) -> Span:
    return cell if isinstance(cell, Span) else Span(cell)


def _parts(timeline: Timeline) -> list[list[Cell]]:
    """Every component that is ever alive, with its mark, and their sum."""
    history = timeline.history
    total = history.samples[history.peak_sample].allocated_bytes
    shown = apportion([part.bytes for part in history.components], gib_up(total))
    marks = letters(timeline)
    rows: list[list[Cell]] = []
    for part, at_peak in zip(history.components, shown, strict=True):
        most = at_peak if part.most_bytes == part.bytes else max(at_peak, gib_up(part.most_bytes))
        rows.append([marks[part.name], part.name, text_of(at_peak), text_of(most)])
    figure = text_of(gib_up(total))
    rows.append([Span("=", "muted"), Span("allocated", "strong"), Span(figure, "strong"), Span(figure, "strong")])
    return rows


def _legend(timeline: Timeline, width: int) -> list[Line]:
    columns = [Column(""), Column("component", most=16), Column("GiB at the peak", right=True)]
    columns.append(Column("most in the step", right=True, drop=1))
    return table(columns, _parts(timeline), width)


def _phase_rows(timeline: Timeline) -> list[list[str]]:
    return [
        [
            phase.name,
            *(text_of(gib_up(size)) for size in (phase.start_bytes, phase.peak_bytes, phase.end_bytes)),
            f"{phase.samples:,}",
        ]
        for phase in timeline.history.phases
    ]


def _phases(timeline: Timeline, width: int) -> list[Line]:
    columns = [Column("phase"), *(Column(name, right=True) for name in ("start GiB", "peak GiB", "end GiB"))]
    return table([*columns, Column("operators", right=True, drop=1)], _phase_rows(timeline), width)
