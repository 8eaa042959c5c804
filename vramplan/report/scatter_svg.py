"""Memory against rate as SVG: a point for each run that fits, and a line through those that no other beats."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from vramplan.report.lines import clean, elide
from vramplan.report.timeline_svg import FONT, GRID, INK, MUTED
from vramplan.tuples import NamedTuple

WIDTH, HEIGHT = 900, 560
LEFT, RIGHT, TOP, BOTTOM = 90, 860, 60, 480
POINT, FRONT = "#0072b2", "#d55e00"  # Okabe and Ito's
LONGEST = 110  # characters of a label
LINE = 18  # of the list below
TICKS = 6


class ScatterPoint(NamedTuple):
    """One run: GiB of a GPU, its rate, and what it is called."""

    gib: float
    rate: float
    label: str
    is_front: bool


def scatter(points: Sequence[ScatterPoint], title: str, unit: str) -> str:
    """The picture as the text of an SVG file. `unit` is that of the rate. The front is numbered,
    and its runs are listed below.
    """
    highest = max((point.rate for point in points), default=1.0)
    widest = max((point.gib for point in points), default=1.0)
    across, up = _steps(widest), _steps(highest)

    def x(gib: float) -> float:
        return LEFT + (RIGHT - LEFT) * gib / across[-1]

    def y(rate: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * rate / up[-1]

    front = sorted((point for point in points if point.is_front), key=lambda point: point.gib)
    height = HEIGHT + LINE * len(front)
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
    for number, point in enumerate(front, 1):
        across_at, down = x(point.gib), y(point.rate) - 9
        parts.append(f'<text x="{across_at:.1f}" y="{down:.1f}" text-anchor="middle" font-size="11">{number}</text>')
        words = f"{number}  {point.gib:.2f} GiB, {point.rate:,.0f}: {point.label}"
        parts.append(f'<text x="{LEFT}" y="{HEIGHT + LINE * (number - 1)}">{_escaped(words, LONGEST)}</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _steps(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`, about `TICKS` of them."""
    rough = max(most, 1e-9) / TICKS
    power = 10.0 ** floor(log10(rough))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= rough)
    count = 1
    while step * count < most:
        count += 1
    return [step * number for number in range(count + 1)]


def _escaped(text: str, most: int) -> str:
    words = elide(clean(text), most)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        words = words.replace(char, entity)
    return words.encode("ascii", "xmlcharrefreplace").decode("ascii")
