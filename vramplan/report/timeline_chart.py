"""The timeline in a terminal: a stacked area, in blocks of colour or in letters."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.report.lines import BLOCK, Line, Span, elide, wrap
from vramplan.report.memory import keys_of, squeeze
from vramplan.report.numbers import gib_down, gib_up, text_of
from vramplan.report.timeline_scale import (
    PictureColumn,
    VerticalAxis,
    axis,
    columns,
    peak_column,
    peak_words,
    stacks,
    ticks,
)
from vramplan.results import Component
from vramplan.results.timeline import Timeline
from vramplan.tuples import NamedTuple

WIDEST = 240
LEAST_COLUMNS = 6  # of a phase, however few operators it has: "step" and a space on each side
EIGHTHS = " ▁▂▃▄▅▆▇█"
UNCOVERED = -1


class Drawing(NamedTuple):
    """A timeline, and how it is to be drawn."""

    timeline: Timeline
    rows: int | None  # of the chart; None is what suits the width
    zoom: bool  # begin the axis at what is alive during the whole step


def default_rows(width: int) -> int:
    """Rows that go well with so many columns."""
    return 16 if width < 100 else 22 if width < 140 else 26


def letters(timeline: Timeline) -> dict[str, Span]:
    """The mark of each component: the one it has in the report of `fit`."""
    parts = [Component(part.name, part.bytes, "") for part in timeline.history.components]
    return {name: mark for (name, _), mark in keys_of(parts, ()).items()}


def chart(drawing: Drawing, width: int) -> list[Line]:
    """The picture with its axes in exactly `width` columns, the peak marked above it, the phases below it."""
    timeline = drawing.timeline
    rows = drawing.rows or default_rows(width)
    scale = axis(timeline, zoom=drawing.zoom)
    named = {min(rows - 1, _row(scale, value, rows)): text for value, text in ticks(scale, max(2, rows // 2))}
    margin = max(len("GiB"), *(len(text) for text in named.values())) + 3
    laid = columns(timeline.history, width - margin, LEAST_COLUMNS)
    grid = _grid(timeline, scale, laid, rows)
    lines = [_peak(timeline, laid, margin)]
    for row in range(rows - 1, -1, -1):
        label = named.get(row, "")
        tick = Span(f"{label:>{margin - 2}} ", "muted"), Span("┤" if label else "│", "muted", "+" if label else "|")
        lines.append(squeeze([*tick, *grid[row]]))
    return [*lines, *_phases(timeline, laid, margin), *_limit(timeline, scale, margin, width)]


def _row(scale: VerticalAxis, value: int, rows: int) -> int:
    return (value - scale.low) * rows // max(scale.high - scale.low, 1)


def _grid(timeline: Timeline, scale: VerticalAxis, laid: Sequence[PictureColumn], rows: int) -> list[list[Span]]:
    """Rows of cells, the lowest first."""
    marks = list(letters(timeline).values())
    limit_row = None if scale.limit is None else min(rows - 1, _row(scale, scale.limit, rows))
    marked = peak_column(timeline.history, laid)
    grid: list[list[Span]] = [[] for _ in range(rows)]
    for place, (column, levels) in enumerate(zip(laid, stacks(timeline, laid), strict=True)):
        filled = _eighths(scale, levels, rows)
        peak = column.highest == timeline.history.peak_sample
        for row in range(rows):
            cell = _cell(filled[8 * row : 8 * row + 8], marks)
            if row == limit_row:
                cell = _crossed(cell)
            elif place == marked and cell.text == " ":
                cell = Span("│", "muted", "|")  # down from the arrow
            elif peak and cell.plain == " " and cell.text != " ":
                cell = cell._replace(plain=marks[filled[8 * row]].plain)  # letters reach as high as the block
            grid[row].append(cell)
    return grid


def _eighths(scale: VerticalAxis, levels: Sequence[int], rows: int) -> list[int]:
    """Which component fills each eighth of a row of one column, from below; UNCOVERED above them all."""
    span = max(scale.high - scale.low, 1)
    filled: list[int] = []
    for number, level in enumerate(levels):
        reach = (2 * (level - scale.low) * 8 * rows + span) // (2 * span)
        filled += [number] * (min(reach, 8 * rows) - len(filled))
    return filled + [UNCOVERED] * (8 * rows - len(filled))


def _cell(eighths: Sequence[int], marks: Sequence[Span]) -> Span:
    """One character: a full block, a part of one, or the boundary between the two largest parts of the cell."""
    covered = [part for part in eighths if part != UNCOVERED]
    if not covered:
        return Span(" ", "", " ")
    here = sorted(set(covered))
    main = sorted(sorted(here, key=covered.count)[-2:])  # in the order of the stack
    middle = eighths[3]
    plain = " " if middle == UNCOVERED else marks[middle].plain
    if len(covered) < 8:
        largest = max(here, key=covered.count)
        return Span(EIGHTHS[len(covered)], marks[largest].style, plain)
    if len(main) == 1:
        return Span(BLOCK, marks[main[0]].style, plain)
    lower, upper = main
    share = round(8 * covered.count(lower) / (covered.count(lower) + covered.count(upper)))
    return Span(EIGHTHS[min(max(share, 1), 7)], f"{marks[lower].style}/{marks[upper].style}", plain)


def _crossed(cell: Span) -> Span:
    """A cell with the line of the limit through its middle; what fills less than half of it is not seen."""
    ground = cell.style.rpartition("/")[2] if EIGHTHS.index(cell.text) >= 4 or "/" in cell.style else ""
    return Span("─", f"over/{ground}" if ground else "over", "-")


def _peak(timeline: Timeline, laid: Sequence[PictureColumn], margin: int) -> Line:
    """The figure and the place of the peak, and an arrow above its column."""
    history = timeline.history
    peak = history.samples[history.peak_sample]
    at = peak_column(history, laid)
    figure = f"peak {text_of(gib_up(peak.allocated_bytes))} GiB"
    arrow = Span("▼", "strong", "v")
    left, right = margin + at - 1, len(laid) - at - 2
    words = elide(peak_words(timeline), max(left, right) - len(figure) - 2)
    text = [Span(figure, "strong"), Span(f"  {words}", "muted")]
    size = len(figure) + 2 + len(words)
    if size <= right:
        return (Span(f"{'GiB':>{margin - 2}}", "muted"), Span(" " * (at + 2)), arrow, Span(" "), *text)
    head = f"{'GiB':>{margin - 2}}" if left - size >= margin else ""
    return (Span(head, "muted"), Span(" " * (left - size - len(head))), *text, Span(" "), arrow)


def _phases(timeline: Timeline, laid: Sequence[PictureColumn], margin: int) -> list[Line]:
    """The axis, cut where a phase ends, and the names of the phases under their columns."""
    rule, plain, names = "└", "+", ""
    for number, phase in enumerate(timeline.history.phases):
        width = sum(column.phase == number for column in laid)
        rule += "─" * (width - 1) + ("┘" if number == len(timeline.history.phases) - 1 else "┴")
        plain += "-" * (width - 1) + "+"
        said = f"{phase.name}, {phase.samples:,} operators"
        names += (said if len(said) + 2 <= width else elide(phase.name, width - 1)).center(width)
    return [
        (Span(" " * (margin - 1)), Span(rule, "muted", plain)),
        (Span(" " * margin), Span(names.rstrip(" "), "muted")),
    ]


def _limit(timeline: Timeline, scale: VerticalAxis, margin: int, width: int) -> list[Line]:
    """What the line across the picture is, or that it is not in the picture."""
    limit = text_of(gib_down(timeline.allocated_limit_bytes))
    if scale.limit is not None:
        said = f"budget {limit} GiB allocated"
    else:
        where = "below" if timeline.allocated_limit_bytes <= scale.low else "far above"
        said = f"budget {limit} GiB allocated: {where} this picture"
    if scale.low:
        said += f"; the axis begins at {text_of(gib_down(scale.low))} GiB"
    sign = Span("──", "over", "--") if scale.limit is not None else Span("  ")
    first, *rest = wrap([Span(said, "muted")], width - margin - 3)
    return [(Span(" " * margin), sign, Span(" "), *first), *((Span(" " * (margin + 3)), *line) for line in rest)]
