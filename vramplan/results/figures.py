"""What a gate looks at: the figures of an answer without what explains them."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class PeakFigures(NamedTuple):
    """The peak on its way to the device, in bytes."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    low_bytes: int
    high_bytes: int


class Figures(NamedTuple):
    """A verdict and what it is made of: each is that of the `FitResult` of the same job."""

    verdict: str
    capacity_bytes: int
    usable_bytes: int
    headroom_bytes: int
    utilization: float
    peak: PeakFigures
    broken_limits: tuple[str, ...] = ()  # a sentence for each limit that is not kept or cannot be judged
