"""How the margins of the simulated allocator follow from published peaks, and what they hold that they have not seen.

The rule: one pair for all runs, in whole percent, the narrowest that holds `COVERED` of them; of two that are as narrow
the one that reaches higher, as a run that needs more than its band dies. A compiled run has at least the margin that
traces of compiled steps ask for. Leaving each source out once, and judging it by the margin of the others, says how the
rule does on runs that it has not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from tests.measured.compare import all_rows
from vramplan.memory.bands import COMPILED, OUTSIDE, Margin
from vramplan.rows import ErrorStats

COVERED = 0.92  # a little more than the nine of ten that are asked for, as runs that were left out are held less often
WIDEST = 25  # percent; no end is looked for further away


class Run(NamedTuple):
    """One published peak, in bytes."""

    name: str
    source: str
    is_compiled: bool
    reserved: int  # simulated
    outside: int  # of the allocator: the context and communicators
    predicted: int  # on the device
    needed: int  # on the device, where the metric of the source is further inside: as far off as that is

    def ends(self, margin: Margin) -> tuple[float, float]:
        """The band that such a margin gives."""
        if self.is_compiled:
            margin = margin.widest(COMPILED)
        low = self.reserved * (100 - margin.below) / 100 + self.outside * OUTSIDE / 100
        return low, self.reserved * (100 + margin.above) / 100 + self.outside

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
def runs() -> tuple[Run, ...]:
    """Every published peak, with the allocator simulated."""
    found = []
    for row in all_rows():
        assert row.result is not None
        assert row.source is not None
        assert row.predicted_bytes is not None
        assert row.measured_bytes is not None
        peak = row.result.peak
        found.append(
            Run(
                name=row.name,
                source=row.source,
                is_compiled=bool(row.result.job["compile"]),
                reserved=peak.reserved_bytes,
                outside=peak.device_bytes - peak.reserved_bytes,
                predicted=peak.device_bytes,
                needed=peak.device_bytes + row.measured_bytes - row.predicted_bytes,
            )
        )
    return tuple(found)


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
