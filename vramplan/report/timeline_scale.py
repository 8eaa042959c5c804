"""The two axes of a picture of the timeline, for the terminal and for SVG: which sample is in which column, and GiB."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.report.numbers import GIB
from vramplan.results.timeline import History, Timeline
from vramplan.tuples import NamedTuple

IN_RANGE = 2  # the limit is drawn where it is at most this many times as high as the peak


class PictureColumn(NamedTuple):
    """One column of a picture: a range of samples of one phase, and the highest of them."""

    phase: int
    first: int
    last: int
    highest: int


class VerticalAxis(NamedTuple):
    """The vertical axis, in bytes from `low` to `high`; `limit` is None where it is not in the picture."""

    low: int
    high: int
    limit: int | None


def columns(history: History, count: int, least: int) -> list[PictureColumn]:
    """Lay the samples out in `count` columns, in order, at least `least` for each phase.

    A column of several samples stands for the highest, so that no peak is lost; where there are fewer samples than
    columns, a sample is as many columns wide as its share.
    """
    found: list[PictureColumn] = []
    for number, (phase, width) in enumerate(zip(history.phases, _widths(history, count, least), strict=True)):
        for place in range(width):
            first = phase.first_sample + place * phase.samples // width
            last = phase.first_sample + max((place + 1) * phase.samples // width - 1, place * phase.samples // width)
            highest = max(range(first, last + 1), key=lambda k: history.samples[k].allocated_bytes)
            if first <= history.peak_sample <= last:
                highest = history.peak_sample
            found.append(PictureColumn(number, first, last, highest))
    return found


def _widths(history: History, count: int, least: int) -> list[int]:
    """Columns of each phase: in proportion to its samples, but never fewer than `least`."""
    samples = [phase.samples for phase in history.phases]
    widths = [0] * len(samples)
    free, open_phases = count, set(range(len(samples)))
    while True:
        total = sum(samples[k] for k in open_phases)
        small = {k for k in open_phases if samples[k] * free < least * total}
        if not small or small == open_phases:
            break
        for k in small:
            widths[k] = least
        free -= least * len(small)
        open_phases -= small
    total, so_far, end = sum(samples[k] for k in open_phases), 0, 0
    for k in sorted(open_phases):
        so_far += samples[k]
        widths[k], end = so_far * free // total - end, so_far * free // total
    return widths


def axis(timeline: Timeline, *, zoom: bool) -> VerticalAxis:
    """From zero, or with `zoom` from what is alive during the whole step, to the peak or the limit above it."""
    history, limit = timeline.history, timeline.allocated_limit_bytes
    peak = history.samples[history.peak_sample].allocated_bytes
    low = min(sample.allocated_bytes for sample in history.samples) if zoom else 0
    if low == peak:  # nothing comes and goes
        low = 0
    shown = low < limit <= low + IN_RANGE * (peak - low)
    return VerticalAxis(low, max(peak, limit) if shown else peak, limit if shown else None)


def ticks(scale: VerticalAxis, most: int) -> list[tuple[int, str]]:
    """Up to `most` round values of the axis, in bytes and as GiB."""
    if scale.high <= scale.low:
        return [(scale.low, _plain(scale.low / GIB, 2))]
    exponent = -6
    while True:
        for mantissa in (1, 2, 5):
            step = mantissa * 10.0**exponent
            first = -int(-scale.low / (step * GIB) // 1)  # rounded up
            last = int(scale.high / (step * GIB))
            if last - first < most:
                return [(round(n * step * GIB), _plain(n * step, max(0, -exponent))) for n in range(first, last + 1)]
        exponent += 1


def _plain(number: float, digits: int) -> str:
    return f"{number:.{digits}f}"


def stacks(timeline: Timeline, laid: Sequence[PictureColumn]) -> list[list[int]]:
    """For each column the level up to and with each component, in bytes."""
    made = []
    for column in laid:
        level, levels = 0, []
        for size in timeline.history.samples[column.highest].components:
            level += size
            levels.append(level)
        made.append(levels)
    return made


def peak_column(history: History, laid: Sequence[PictureColumn]) -> int:
    """The column that is marked: the middle one of those that show the peak."""
    showing = [place for place, column in enumerate(laid) if column.highest == history.peak_sample]
    return showing[len(showing) // 2]


def peak_words(timeline: Timeline) -> str:
    """`backward, block 12, linear`: where the peak is."""
    sample = timeline.history.samples[timeline.history.peak_sample]
    block = "" if sample.block is None else f"block {sample.block}, "
    return f"{sample.phase}, {block}{sample.operator}"
