"""The timeline as SVG: one self-contained file in ASCII, without scripts, styles or fonts from elsewhere.

Text has zones of its own (title, the strip of the peak, the left and right margins, the band of the phases, the
legend), so that nothing is written over anything else, whatever the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vramplan.report.headline import judged_words, room_words, strategy, subject, verdict_words
from vramplan.report.lines import clean, elide
from vramplan.report.memory import ShownFigures
from vramplan.report.numbers import apportion, gib_down, gib_up, text_of
from vramplan.report.timeline_chart import Drawing
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
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.results.timeline import Timeline

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 1200, 74, 1084, 116, 516  # the picture, and the edges of the plot in it
LEAST_COLUMNS = 48  # of a phase, however few operators it has: its name must be readable
MOST_TICKS = 9
LEGEND_ROW, LEGEND_COLUMNS = 24, 4
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"

# Okabe and Ito's palette, which colour-blind people can tell apart (jfly.uni-koeln.de/color), and three greys and
# blues for what it has no place for. Neighbours in the stack differ in lightness too.
COLOURS = {
    "weights": "#0072b2",
    "master": "#332288",
    "optimizer": "#56b4e9",
    "ema": "#88ccee",
    "reference": "#44aa99",
    "gradients": "#009e73",
    "weight_casts": "#f0e442",
    "gathered": "#117733",
    "in_flight": "#ddcc77",
    "communication": "#aa4499",
    "activations": "#e69f00",
    "temporaries": "#d55e00",
    "workspace": "#cc79a7",
    "buffers": "#999999",
    "inputs": "#555555",
}
OTHER = "#bbbbbb"
# white is readable on these
DARK = ("weights", "master", "gradients", "temporaries", "inputs", "gathered", "communication")
INK, MUTED, GRID, ALARM = "#1f2328", "#59636e", "#d8dee4", "#b00020"
TOO_MUCH = "#fbe9eb"  # the ground above what fits
VERDICTS = {FITS: "#1a7f37", TIGHT: "#9a6700", DOES_NOT_FIT: ALARM}


def svg_of(drawing: Drawing) -> str:
    """The picture as the text of an SVG file. Each pixel column shows the highest of its samples."""
    timeline = drawing.timeline
    scale = axis(timeline, zoom=drawing.zoom)
    laid = columns(timeline.history, RIGHT - LEFT, LEAST_COLUMNS)
    levels = stacks(timeline, laid)
    rows = -(-(len(timeline.history.components) + 1) // LEGEND_COLUMNS)
    height = BOTTOM + 96 + rows * LEGEND_ROW
    parts = [
        *_head(timeline, height),
        *_ground(timeline, scale, laid),
        *_areas(timeline, scale, levels),
        *_limit(timeline, scale),
        *_bands(timeline, scale, laid),
        *_peak(timeline, scale, laid),
        *_legend(timeline),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(
    x: float, y: float, words: str, *, colour: str = INK, size: int = 13, anchor: str = "start", bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{place}{weight}>{_escaped(words)}</text>'


def _escaped(words: str) -> str:
    words = clean(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return words.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{colour}" fill="none"{more}/>'


def _box(x: float, y: float, width: float, height: float, colour: str, more: str = "") -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"{more}/>'


def _y(scale: VerticalAxis, level: int) -> float:
    share = (level - scale.low) / max(scale.high - scale.low, 1)
    return round(BOTTOM - min(max(share, 0.0), 1.0) * (BOTTOM - TOP), 1)


def _head(timeline: Timeline, height: int) -> list[str]:
    fit = timeline.fit
    figures = ShownFigures(fit)
    likely = f"range {text_of(figures.low)} to {text_of(figures.high)}"
    said = f"{text_of(figures.device)} of {text_of(figures.usable)} GiB per GPU, {likely}, {room_words(figures)}"
    title, verdict = elide(subject(fit), 74), verdict_words(fit)
    run = elide(f"{judged_words(fit)}, checkpointing {strategy(fit)}", 110)
    peak = timeline.history.samples[timeline.history.peak_sample]
    described = (
        f"Allocated memory over one training step, in GiB, stacked by component. The peak is "
        f"{text_of(gib_up(peak.allocated_bytes))} GiB in {peak_words(timeline)}."
    )
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-labelledby="title described" font-family="{FONT}">',
        f'<title id="title">{_escaped(f"{verdict}: {title}, live memory over one training step")}</title>',
        f'<desc id="described">{_escaped(described)}</desc>',
        _box(0, 0, WIDTH, height, "#ffffff"),
        _text(24, 34, title, size=19, bold=True),
        f'<text x="24" y="58" font-size="14" fill="{INK}"><tspan fill="{VERDICTS.get(fit.verdict, INK)}" '
        f'font-weight="700">{_escaped(verdict)}</tspan><tspan dx="10">{_escaped(said)}</tspan></text>',
        _text(WIDTH - 24, 34, "allocated memory over one training step", colour=MUTED, anchor="end"),
        _text(24, 79, run, colour=MUTED),
    ]


def _spans(timeline: Timeline, laid: Sequence[PictureColumn]) -> list[tuple[int, int]]:
    """The columns of each phase: from, up to."""
    ends = [0]
    for number in range(len(timeline.history.phases)):
        ends.append(ends[-1] + sum(column.phase == number for column in laid))
    return list(pairwise(ends))


def _ground(timeline: Timeline, scale: VerticalAxis, laid: Sequence[PictureColumn]) -> list[str]:
    """Bands of the phases, and the lines of the axis with their labels."""
    made = []
    for number, (start, end) in enumerate(_spans(timeline, laid)):
        made.append(_box(LEFT + start, TOP, end - start, BOTTOM - TOP, "#f6f8fa" if number % 2 else "#fbfcfd"))
    if scale.limit is not None and scale.limit < scale.high:
        made.append(_box(LEFT, TOP, RIGHT - LEFT, _y(scale, scale.limit) - TOP, TOO_MUCH))
    made.append(_text(LEFT - 10, TOP - 12, "GiB", colour=MUTED, size=12, anchor="end"))
    for value, words in ticks(scale, MOST_TICKS):
        y = _y(scale, value)
        made.append(_line(LEFT, y, RIGHT, y, GRID))
        made.append(_text(LEFT - 10, y + 4, words, colour=MUTED, size=12, anchor="end"))
    return made


def _areas(timeline: Timeline, scale: VerticalAxis, levels: Sequence[Sequence[int]]) -> list[str]:
    """Each component's area from the axis to its upper edge, the highest first: the next one covers the rest."""
    made = []
    for place in range(len(timeline.history.components) - 1, -1, -1):
        edge = [_y(scale, column[place]) for column in levels]
        under = [_y(scale, column[place - 1]) if place else float(BOTTOM) for column in levels]
        if max(low - high for high, low in zip(edge, under, strict=True)) < 0.1:
            continue  # thinner than anything that can be seen; the legend has it
        path, at = [f"M{LEFT} {BOTTOM}"], float(BOTTOM)
        for column, y in enumerate(edge):
            if y != at:
                path.append(f"H{LEFT + column}V{y:g}" if column else f"V{y:g}")
                at = y
        name = timeline.history.components[place].name
        path.append(f"H{RIGHT}V{BOTTOM}Z")
        made.append(
            f'<path d="{"".join(path)}" fill="{COLOURS.get(name, OTHER)}"><title>{_escaped(name)}</title></path>'
        )
    return made + _names(timeline, scale, levels)


def _names(timeline: Timeline, scale: VerticalAxis, levels: Sequence[Sequence[int]]) -> list[str]:
    """The names of components inside their areas, where these are thick enough at the left."""
    made = []
    for place, part in enumerate(timeline.history.components):
        wide = levels[: 20 + 8 * len(part.name)]
        top = max(_y(scale, column[place]) for column in wide)
        under = min(_y(scale, column[place - 1]) if place else BOTTOM for column in wide)
        if under - top >= 22:
            colour = "#ffffff" if part.name in DARK else INK
            made.append(_text(LEFT + 12, (under + top) / 2 + 4.5, part.name, colour=colour))
    return made


def _limit(timeline: Timeline, scale: VerticalAxis) -> list[str]:
    """The line of what still fits, with its label in the right margin."""
    if scale.limit is None:
        return []
    y = _y(scale, scale.limit)
    figure = text_of(gib_down(scale.limit))
    below = min(max(y, TOP + 8), BOTTOM - 24)
    return [
        _line(LEFT, y, RIGHT + 6, y, "#ffffff", ' stroke-width="4" stroke-opacity="0.6"'),
        _line(LEFT, y, RIGHT + 6, y, ALARM, ' stroke-width="2" stroke-dasharray="7 4"'),
        _text(RIGHT + 10, below + 4, f"{figure} GiB", colour=ALARM, bold=True),
        _text(RIGHT + 10, below + 20, "budget", colour=ALARM, size=12),
    ]


def _bands(timeline: Timeline, scale: VerticalAxis, laid: Sequence[PictureColumn]) -> list[str]:
    """The phases under the plot, and what the axes are."""
    made = []
    for phase, (start, end) in zip(timeline.history.phases, _spans(timeline, laid), strict=True):
        made.append(_box(LEFT + start + 1, BOTTOM + 5, end - start - 2, 24, "#eaeef2", ' rx="3"'))
        words = f"{phase.name}, {phase.samples:,} operators"
        words = words if 8 * len(words) < end - start else phase.name
        made.append(_text(LEFT + (start + end) / 2, BOTTOM + 21, words, anchor="middle"))
        if start:
            made.append(_line(LEFT + start, TOP, LEFT + start, BOTTOM, INK, ' stroke-opacity="0.35"'))
    made.append(_line(LEFT, BOTTOM, RIGHT, BOTTOM, INK))
    said = "operators in the order in which they run; each column shows its highest sample"
    if scale.low:
        said += f"; the axis begins at {text_of(gib_down(scale.low))} GiB"
    if scale.limit is None:
        where = "below" if timeline.allocated_limit_bytes <= scale.low else "far above"
        limit = text_of(gib_down(timeline.allocated_limit_bytes))
        said += f"; the budget of {limit} GiB is {where} this picture"
    return [*made, _text(LEFT, BOTTOM + 48, said, colour=MUTED, size=12)]


def _peak(timeline: Timeline, scale: VerticalAxis, laid: Sequence[PictureColumn]) -> list[str]:
    """A dot on the peak, and its figure in the strip above the plot."""
    history = timeline.history
    peak = history.samples[history.peak_sample]
    x, y = LEFT + peak_column(history, laid) + 0.5, _y(scale, peak.allocated_bytes)
    figure, words = f"peak {text_of(gib_up(peak.allocated_bytes))} GiB", elide(peak_words(timeline), 60)
    left = x < (LEFT + RIGHT) / 2
    anchor = "start" if left else "end"  # of one text: renderers differ in where several in a row end
    said = _text(x + (8 if left else -8), TOP - 11, f"{figure}: {words}", anchor=anchor, bold=True)
    dot = f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="{INK}" stroke="#ffffff" stroke-width="1.5"/>'
    return [_line(x, TOP - 22, x, y, INK), dot, said]


def _legend(timeline: Timeline) -> list[str]:
    """Every component with its colour and its size at the peak, and the sum."""
    history = timeline.history
    total = gib_up(history.samples[history.peak_sample].allocated_bytes)
    shown = apportion([part.bytes for part in history.components], total)
    y = BOTTOM + 80
    made = [_line(24, y - 16, WIDTH - 24, y - 16, GRID), _text(24, y + 6, "at the peak", colour=MUTED, size=12)]
    parts = [*zip((part.name for part in history.components), shown, strict=True), ("allocated", total)]
    left = LEFT + 46
    width = (WIDTH - left - 24) / LEGEND_COLUMNS
    for place, (name, size) in enumerate(parts):
        row, column = divmod(place, LEGEND_COLUMNS)
        x, base = left + column * width, y + 6 + row * LEGEND_ROW
        is_sum = place == len(history.components)
        if not is_sum:
            made.append(_box(x, base - 11, 14, 14, COLOURS.get(name, OTHER), ' rx="2"'))
        made.append(_text(x + 22, base, elide(name, 20), bold=is_sum))
        made.append(_text(x + width - 44, base, f"{text_of(size)} GiB", anchor="end", bold=is_sum))
    return made
