"""Where the time of a step goes, as frozen values: what `vramplan explain --time` prints."""

from __future__ import annotations

from vramplan.results import FitResult
from vramplan.results.time import Time
from vramplan.tuples import NamedTuple

LAUNCH = "launch"  # what bounds a kernel that is shorter than its launch
OUTSIDE = "outside of the blocks"


class KernelRow(NamedTuple):
    """All runs of one operator in one direction; figures are of one micro-batch."""

    operator: str
    direction: str  # forward | recompute | backward
    kind: str  # product | attention | convolution | bytes
    shapes: tuple[tuple[int, ...], ...]  # of the operands of its longest run, at the micro-batch of the replay
    runs: int
    flops: int
    bytes: int
    seconds: float
    share: float  # of the step
    bound: str  # compute | memory-bandwidth | launch

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte; None where no byte moves."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def flop_per_s(self) -> float:
        """The rate that it runs at."""
        return self.flops / self.seconds if self.seconds else 0.0


class BlockRow(NamedTuple):
    """Equal blocks, or what is outside of them; seconds are of one.

    Several blocks are one of these under one checkpoint, and where blocks of different kinds come in turns.
    """

    first: int | None  # number of the first; None: outside of the blocks
    blocks_each: int  # 0 outside of the blocks
    copies: int
    forward_seconds: float
    recompute_seconds: float
    backward_seconds: float
    flops: int
    bytes: int
    share: float  # of the step, all of them together


class CollectiveRow(NamedTuple):
    """Equal collectives of a step on one device."""

    kind: str
    group: str
    when: str
    size_bytes: int  # of each, of the whole tensor
    devices: int
    times: int  # in a step
    seconds: float  # of each
    hidden: bool  # whether kernels run beside it


class Roofline(NamedTuple):
    """A step of the slowest device."""

    fit: FitResult
    time: Time
    steps: int  # micro-batches
    product_flop_per_s: float  # that products reach
    bytes_per_s: float  # that other kernels reach
    kernels: tuple[KernelRow, ...]  # the longest first
    blocks: tuple[BlockRow, ...]
    collectives: tuple[CollectiveRow, ...]

    @property
    def ridge(self) -> float:
        """FLOPs for each byte from which on a product is bound by compute."""
        return self.product_flop_per_s / self.bytes_per_s
