"""Measured rates beside predicted ones, and beside what a constant utilisation would say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from vramplan.results.listings.measured import ErrorStats, ValidateRow
from vramplan.results.time import CALIBRATED, EXTRAPOLATED

FIGURES = ("tokens_per_second", "samples_per_second", "step_seconds", "tflops_per_device", "mfu")
"""Measured figures that say how fast a run was; of several that were printed the first is compared."""

LEAST_DIFFERENCE = 0.05
"""Of the larger rate: runs of one ladder that differ by less are not asked which of them is faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStats:
    """How good predicted rates are: errors, and of pairs of runs how many are in the right order.

    A pair is of one source, model, GPU and precision, and differs by more than 5 %.
    """

    errors: ErrorStats
    order_right: int
    order_total: int

    @property
    def order(self) -> float | None:
        """The share of pairs in the right order; None without a pair."""
        return self.order_right / self.order_total if self.order_total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSummary:
    """Rates by how they were predicted, and all of them as a constant utilisation predicts them."""

    calibrated: RateStats
    extrapolated: RateStats
    together: RateStats
    constant: RateStats  # one MFU for each generation of GPUs
    constant_calibrated: RateStats  # the same, of the calibrated rows alone
    without: int  # measured rates of jobs without a predicted one: no peak of their GPU is known

    @property
    def count(self) -> int:
        """Rates that are compared."""
        return self.together.errors.count

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> RateSummary:
        """Compare the rows that have a measured rate."""
        rows = tuple(rows)
        found = [row for row in rows if row.rate_error is not None]
        own = [row for row in found if row.rate_basis == CALIBRATED]
        other = [row for row in found if row.rate_basis == EXTRAPOLATED]
        missing = sum(row.measured_rate is not None and row.predicted_rate is None for row in rows)
        return cls(
            calibrated=_stats(own),
            extrapolated=_stats(other),
            together=_stats(found),
            constant=_stats(found, constant=True),
            constant_calibrated=_stats(own, constant=True),
            without=missing,
        )


def _stats(rows: Sequence[ValidateRow], *, constant: bool = False) -> RateStats:
    errors = [row.constant_rate_error if constant else row.rate_error for row in rows]
    groups: dict[tuple[str, ...], list[ValidateRow]] = {}
    for row in rows:
        if row.rate_group is not None:
            groups.setdefault((str(row.rate_figure), *row.rate_group), []).append(row)
    right = total = 0
    for members in groups.values():
        for one, other in combinations(members, 2):
            measured = _speed(one, one.measured_rate), _speed(other, other.measured_rate)
            if min(measured) > (1 - LEAST_DIFFERENCE) * max(measured):
                continue
            ours = [_speed(row, row.constant_rate if constant else row.predicted_rate) for row in (one, other)]
            total += 1
            right += (ours[0] > ours[1]) == (measured[0] > measured[1]) and ours[0] != ours[1]
    return RateStats(errors=ErrorStats.of([e for e in errors if e is not None]), order_right=right, order_total=total)


def _speed(row: ValidateRow, figure: float | None) -> float:
    """The figure so that more is faster."""
    assert figure is not None
    return 1 / figure if row.rate_figure == "step_seconds" else figure
