"""Memory against rate as SVG: a point for each run that fits, and a line through those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from vramplan.report.lines import clean, elide
from vramplan.report.numbers import GIB, gib_up, text_of
from vramplan.report.timeline_svg import FONT, GRID, INK, MUTED
from vramplan.tuples import NamedTuple

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 90, 860, 60, 480
POINT, FRONT = "#0072b2", "#d55e00"  # Okabe and Ito's
LONGEST = 110  # characters of a label
LINE = 18  # of the list below
TICKS = 6
FEW = 12  # points that are all numbered
PLACES = ((0, -9), (0, 18), (13, 4), (-13, 4))  # of a number beside its point, the best first
APART = (13, 11)  # two numbers


class ScatterPoint(NamedTuple):
    """One run: GiB of a GPU, its rate, and what it is called."""

    gib: float
    rate: float
    label: str
    is_front: bool


def scatter(points: Sequence[ScatterPoint], title: str, unit: str) -> str:
    """The picture as the text of an SVG file. `unit` is that of the rate. The front is numbered, and its runs are
    listed below; where there are few points so are the others.
    """
    across, up = _steps([point.gib for point in points]), _steps([point.rate for point in points])

    def x(gib: float) -> float:
        return LEFT + (RIGHT - LEFT) * (gib - across[0]) / (across[-1] - across[0])

    def y(rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (rate - up[0]) / (up[-1] - up[0])

    by_size = sorted(points, key=lambda point: point.gib)
    front = [point for point in by_size if point.is_front]
    numbered = front + [point for point in by_size if not point.is_front and len(points) <= FEW]
    height = HEIGHT + LINE * len(numbered)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="{FONT}" font-size="13" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="18">{_escaped(title, 90)}</text>',
    ]
    for value in across:
        parts.append(f'<line x1="{x(value):.1f}" y1="{TOP}" x2="{x(value):.1f}" y2="{BOTTOM}" stroke="{GRID}"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{BOTTOM + 20}" text-anchor="middle" fill="{MUTED}">{value:g}</text>')
    for value in up:
        parts.append(f'<line x1="{LEFT}" y1="{y(value):.1f}" x2="{RIGHT}" y2="{y(value):.1f}" stroke="{GRID}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="{MUTED}">{value:,g}</text>')
    middle = (LEFT + RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{BOTTOM + 44}" text-anchor="middle">GiB of a GPU at the peak</text>')
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}">{_escaped(unit, 40)}</text>')
    if len(front) > 1:
        line = " ".join(f"{x(point.gib):.1f},{y(point.rate):.1f}" for point in front)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{FRONT}" stroke-width="1.5"/>')
    for point in sorted(points, key=lambda one: one.is_front):
        colour, size = (FRONT, 5) if point.is_front else (POINT, 4)
        label = _escaped(point.label, 200)
        parts.append(
            f'<circle cx="{x(point.gib):.1f}" cy="{y(point.rate):.1f}" r="{size}" fill="{colour}">'
            f"<title>{label}</title></circle>"
        )
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(numbered, 1):
        across_at, down = _beside(x(point.gib), y(point.rate), taken)
        parts.append(f'<text x="{across_at:.1f}" y="{down:.1f}" text-anchor="middle" font-size="11">{number}</text>')
        words = f"{number}: {text_of(gib_up(round(point.gib * GIB)))} GiB, {point.rate:,.0f} {unit}, {point.label}"
        parts.append(f'<text x="{LEFT}" y="{HEIGHT + LINE * (number - 1)}">{_escaped(words, LONGEST)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _beside(x: float, y: float, taken: list[tuple[float, float]]) -> tuple[float, float]:
    """Where the number of a point goes: where none of those before it is, if there is such a place."""
    places = [(x + across, y + down) for across, down in PLACES]
    free = (
        place
        for place in places
        if all(abs(place[0] - one[0]) >= APART[0] or abs(place[1] - one[1]) >= APART[1] for one in taken)
    )
    found = next(free, places[0])
    taken.append(found)
    return found


def _steps(values: Sequence[float]) -> list[float]:
    """Round numbers around all of them, about `TICKS`: from 0, but where all are above half of the largest."""
    most, least = max(values, default=1.0), min(values, default=0.0)
    begin = least if least > most / 2 else 0.0
    rough = max(most - begin, most / 100, 1e-9) / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= rough)
    first = floor(begin / step)
    last = first + 1
    while step * last < most:
        last += 1
    return [step * number for number in range(first, last + 1)]


def _escaped(text: str, most: int) -> str:
    words = elide(clean(text), most)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        words = words.replace(char, entity)
    return words.encode("ascii", "xmlcharrefreplace").decode("ascii")
