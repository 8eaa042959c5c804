"""How margins follow from published peaks, and what they hold that they have not seen.

Where the allocator is simulated: one pair for all runs, in whole percent, the narrowest that holds `COVERED` of them;
of two that are as narrow the one that reaches higher, as a run that needs more than its band dies. A compiled run has
at least the margin that traces of compiled steps ask for. Leaving each source out once, and judging it by the margin
of the others, says how the rule does on runs that it has not seen.

Where it is estimated each margin is the most that the runs of one ladder need, in whole percent; the rest judge it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from tests.measured.compare import all_rows
from vramplan.planner.bands import COMPILED, OUTSIDE, Margin
from vramplan.results.listings import ErrorStats

COVERED = 0.92  # a little more than the nine of ten that are asked for, as runs that were left out are held less often
LADDERS = {"shared": "fsdpqlora-7b-batch", "split": "bigscience-bf16-h13312-l82"}
"""Which runs each margin of the estimate is from."""

WIDEST = 25  # percent; no end is looked for further away


class Run(NamedTuple):
    """One published peak, in bytes."""

    name: str
    source: str
    ladder: str | None
    is_compiled: bool
    held: int  # by the allocator: what is reserved where it is simulated, what tensors need where it is estimated
    outside: int  # of the allocator: the context and communicators
    predicted: int  # on the device
    needed: int  # on the device, where the metric of the source is further inside: as far off as that is

    def ends(self, margin: Margin) -> tuple[float, float]:
        """The band that such a margin gives."""
        if self.is_compiled:
            margin = margin.widest(COMPILED)
        low = self.held * (100 - margin.below) / 100 + self.outside * OUTSIDE / 100
        return low, self.held * (100 + margin.above) / 100 + self.outside

    def is_held(self, margin: Margin) -> bool:
        """Whether the peak lies in that band."""
        low, high = self.ends(margin)
        return low <= self.needed <= high

    def width(self, margin: Margin) -> float:
        """Of the band, against the predicted device figure."""
        low, high = self.ends(margin)
        return (high - low) / self.predicted


class LeftOut(NamedTuple):
    """One source, judged by the margin of the others."""

    source: str
    margin: Margin
    held: int
    widths: tuple[float, ...]


@cache
def runs(*, simulated: bool = True) -> tuple[Run, ...]:
    """Every published peak, with the allocator simulated or estimated."""
    found = []
    for row in all_rows(simulated=simulated):
        assert row.result is not None
        assert row.source is not None
        assert row.predicted_bytes is not None
        assert row.measured_bytes is not None
        peak = row.result.peak
        streams = sum(part.bytes for part in row.result.overheads if part.name == "streams")
        found.append(
            Run(
                name=row.name,
                source=row.source,
                ladder=row.ladder,
                is_compiled=bool(row.result.job["compile"]),
                held=peak.reserved_bytes if simulated else peak.allocated_bytes + streams,
                outside=peak.device_bytes - peak.reserved_bytes,
                predicted=peak.device_bytes,
                needed=peak.device_bytes + row.measured_bytes - row.predicted_bytes,
            )
        )
    return tuple(found)


def most_of_ladder(ladder: str) -> int:
    """How many percent over what is allocated the runs of a ladder need at most, with the allocator estimated."""
    mine = [run for run in runs(simulated=False) if run.ladder == ladder]
    return max(-(-100 * (run.needed - run.outside - run.held) // run.held) for run in mine)


def rest() -> tuple[int, int]:
    """Of the runs that no margin of the estimate is from: how many lie in their bands, and how many there are."""
    others = [row for row in all_rows(simulated=False) if row.ladder not in LADDERS.values()]
    return sum(bool(row.in_band) for row in others), len(others)


def held(of: Iterable[Run], margin: Margin) -> int:
    """How many lie in their bands."""
    return sum(run.is_held(margin) for run in of)


def narrowest(of: Sequence[Run], covered: float = COVERED) -> Margin:
    """The margin of the rule."""
    pairs = sorted(
        (Margin(below, above) for below in range(WIDEST + 1) for above in range(WIDEST + 1)),
        key=lambda pair: (pair.below + pair.above, pair.below),
    )
    return next(pair for pair in pairs if held(of, pair) >= covered * len(of))


@cache
def left_out(covered: float = COVERED) -> tuple[LeftOut, ...]:
    """Each source by the margin of all others."""
    found = []
    for source in dict.fromkeys(run.source for run in runs()):
        mine = [run for run in runs() if run.source == source]
        margin = narrowest([run for run in runs() if run.source != source], covered)
        found.append(LeftOut(source, margin, held(mine, margin), tuple(run.width(margin) for run in mine)))
    return tuple(found)


def widest_left_out() -> Margin:
    """The widest at each end of what leaving one source out gives."""
    found = Margin(0, 0)
    for one in left_out():
        found = found.widest(one.margin)
    return found


def median(widths: Iterable[float]) -> float:
    """Of widths."""
    found = ErrorStats.of(list(widths)).median
    assert found is not None
    return found
