"""One measured case beside its prediction, and errors of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vramplan.errors import Problem
from vramplan.results import FitResult

UNSPECIFIED = "unspecified"  # the metric of a peak of which the source does not say what it measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRow:
    """One measured case. Figures are None where the case has none to compare (a case that only says fits or oom)."""

    name: str
    result: FitResult | None
    exit_code: int = 0
    metric: str | None = None  # allocated | reserved | device | unspecified
    runtime: str | None = None
    devices: str | None = None  # one | several
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    relative_error: float | None = None  # (predicted - measured) / measured
    outcome: str | None = None  # predicted: fits | oom
    measured_outcome: str | None = None  # fits | oom, None where the source does not say
    ladder: str | None = None  # cases of one name are one run with a switch changed
    source: str | None = None  # the title of what published it
    confidence: str | None = None  # of the case: high | medium | low
    in_band: bool | None = None  # whether the measured figure lies in the predicted band
    band_width: float | None = None  # the band's, against the device figure
    rate_figure: str | None = None  # the measured figure of its speed that is compared; None: it has none
    measured_rate: float | None = None
    predicted_rate: float | None = None  # None: no peak rate of the GPU is known
    rate_error: float | None = None  # (predicted - measured) / measured, of the speed: more is faster
    constant_rate: float | None = None  # what a constant utilisation of the GPU's generation predicts
    constant_rate_error: float | None = None
    rate_basis: str | None = None  # calibrated | extrapolated
    rate_group: tuple[str, ...] | None = None  # source, model, GPU and precision: runs that are ordered
    problems: tuple[Problem, ...] = ()

    @property
    def names_metric(self) -> bool:
        """Whether the source says what its peak is a figure of; only then its error is one of the prediction."""
        return self.metric is not None and self.metric != UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """Relative errors of a group. median, p90 and worst are of the absolute error; bias is the mean with its sign."""

    count: int
    median: float | None
    p90: float | None
    worst: float | None
    bias: float | None

    @classmethod
    def of(cls, relative_errors: Sequence[float]) -> ErrorStats:
        """Describe `relative_errors`; percentiles are interpolated linearly."""
        if not relative_errors:
            return cls(count=0, median=None, p90=None, worst=None, bias=None)
        sizes = sorted(abs(error) for error in relative_errors)
        return cls(
            count=len(sizes),
            median=_percentile(sizes, 0.5),
            p90=_percentile(sizes, 0.9),
            worst=sizes[-1],
            bias=sum(relative_errors) / len(sizes),
        )


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
