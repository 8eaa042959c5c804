"""Live memory over one training step as frozen values: what `vramplan timeline` draws. Sizes are integer bytes."""

from __future__ import annotations

from vramplan.results import FitResult
from vramplan.tuples import NamedTuple

START, END = "start of the phase", "end of the step"  # samples that are moments, not operators


class Sample(NamedTuple):
    """One run of allocations by one operator in one block, at its highest level."""

    phase: str  # forward | backward | step
    block: int | None  # counted from 0; None outside of the blocks
    operator: str
    allocated_bytes: int
    components: tuple[int, ...]  # bytes of each component at that level, in the order of Timeline.components


class Phase(NamedTuple):
    """The samples of one phase, and its levels when it begins, at its highest and when it ends."""

    name: str
    first_sample: int
    samples: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int


class Part(NamedTuple):
    """One component: its bytes at the peak of the step, and the most that it ever has in the step."""

    name: str
    bytes: int
    most_bytes: int


class History(NamedTuple):
    """What a record says about the whole step at one micro-batch."""

    components: tuple[Part, ...]  # those that are ever alive, from long-lived to short-lived
    samples: tuple[Sample, ...]
    phases: tuple[Phase, ...]
    peak_sample: int  # the first sample of the highest level


class Timeline(NamedTuple):
    """The whole answer of `vramplan timeline`."""

    fit: FitResult
    history: History
    allocated_limit_bytes: int  # the most allocated bytes whose device figure is within the usable memory
