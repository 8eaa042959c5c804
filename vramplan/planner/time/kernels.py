"""The time of the kernels of one micro-batch, by part of the step and by direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramplan.planner.time import fitted
from vramplan.planner.time.rates import Rates
from vramplan.replay.kernels import (
    ATTENTION,
    BACKWARD,
    BYTES,
    COLLECTIVE,
    CONVOLUTION,
    PRODUCT,
    RECOMPUTE,
    Kernel,
    at,
)
from vramplan.tuples import NamedTuple

DIRECTIONS = ("forward", "recompute", "backward")
MASKED = 0.5  # of the scores of a causal attention, those that a fused kernel makes
REREAD = 2  # what a compiled step stores is written once and read once
NOT_FUSED = {PRODUCT: 2, CONVOLUTION: 2, ATTENTION: 1}
"""Kinds of kernels that a compiler leaves as they are, and how many an operator launches at the most: two of a product,
for the gradients of both operands. A sum over rows, as that of a bias, is fused.
"""


class Priced(NamedTuple):
    """A kernel and its time: seconds and figures of all its runs in one micro-batch."""

    kernel: Kernel
    part: str  # products | attention | bytes
    seconds: float
    flops: int
    again: int
    moved_bytes: int


def price(kernels: Iterable[Kernel], batch: int, rates: Rates, *, causal: bool, compiled: bool) -> list[Priced]:
    """Each kernel of one micro-batch, but for collectives: they are priced by `vramplan.planner.time.traffic`."""
    return [
        Priced(kernel, part, seconds, *(kernel.at(figure, batch) for figure in (flops, again, moved)))
        for kernel, part, seconds, flops, again, moved in _timed(kernels, batch, rates, causal, compiled)
    ]


def _timed(
    kernels: Iterable[Kernel], batch: int, rates: Rates, causal: bool, compiled: bool
) -> Iterator[tuple[Kernel, str, float, int, int, int]]:
    """A kernel, its part of the step, the seconds of all its runs, and operations and bytes of one of them."""
    for kernel in kernels:
        kind = kernel.kind
        if kind == COLLECTIVE:
            continue
        flops, again, written = at(kernel.flops, batch), at(kernel.again, batch), at(kernel.written, batch)
        moved = REREAD * written if compiled and kind == BYTES else at(kernel.read, batch) + written
        counted = flops
        if kind == ATTENTION and causal:
            flops = int(flops * MASKED)
        fused = compiled and kind == BYTES  # into a kernel whose launch is not its own
        seconds = rates.seconds(kernel._replace(launches=0) if fused else kernel, flops, moved, written)
        part = "attention" if kind == ATTENTION else "products" if flops else "bytes"
        yield kernel, part, seconds * times_of(kernel, batch), counted, again, moved


def times_of(kernel: Kernel, batch: int) -> float:
    """How often a kernel runs in a micro-batch."""
    return kernel.times * batch / kernel.samples if kernel.samples else kernel.times


class Micro(NamedTuple):
    """One micro-batch on one device."""

    seconds: dict[str, float]  # by part
    by_direction: dict[str, float]
    launching: dict[str, float]  # seconds that the host takes to launch them, by direction
    model_flops: int  # of forward and backward, without scores that a fused attention makes again
    recomputed_flops: int

    def waiting(self, direction: str) -> float:
        """Seconds in which the device has no kernel to run, since the host has not launched the next.

        Blocks are computed again between those of backward, whose kernels wait in the same queue: one time of both.
        """
        if direction == RECOMPUTE:
            return 0.0
        together = (RECOMPUTE, BACKWARD) if direction == BACKWARD else (direction,)
        return max(0.0, sum(self.launching[one] - self.by_direction[one] for one in together))


def micro_of(kernels: Iterable[Kernel], batch: int, rates: Rates, *, causal: bool, compiled: bool) -> Micro:
    """The sums of one micro-batch of these kernels."""
    seconds = dict.fromkeys(("products", "attention", "bytes"), 0.0)
    by_direction = dict.fromkeys(DIRECTIONS, 0.0)
    launching = dict.fromkeys(DIRECTIONS, 0.0)
    model = recomputed = 0
    host = rates.host_seconds
    for kernel, part, each, flops, again, _ in _timed(kernels, batch, rates, causal, compiled):
        seconds[part] += each
        by_direction[kernel.direction] += each
        if not compiled:
            launching[kernel.direction] += kernel.launches * times_of(kernel, batch) * host[kernel.direction]
        elif kernel.kind in NOT_FUSED:
            made = fitted.COMPILED_KERNELS * min(kernel.launches, NOT_FUSED[kernel.kind]) * times_of(kernel, batch)
            launching[kernel.direction] += made * fitted.COMPILED_SECONDS
        if not flops:
            continue
        computed = kernel.at(flops, batch) - kernel.at(again, batch)
        if kernel.direction == RECOMPUTE:
            recomputed += computed
        else:
            model += computed
    return Micro(seconds, by_direction, launching, model, recomputed)
