"""The time of the kernels of one micro-batch, by part of the step and by direction."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.planner.time.rates import Rates
from vramplan.replay.kernels import ATTENTION, BYTES, COLLECTIVE, RECOMPUTE, Kernel, at
from vramplan.tuples import NamedTuple

DIRECTIONS = ("forward", "recompute", "backward")
MASKED = 0.5  # of the scores of a causal attention, those that a fused kernel makes
REREAD = 2  # what a compiled step stores is written once and read once


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
    found = []
    for kernel in kernels:
        if kernel.kind == COLLECTIVE:
            continue
        flops, again = at(kernel.flops, batch), at(kernel.again, batch)
        written = at(kernel.written, batch)
        moved = at(kernel.read, batch) + written
        if compiled and kernel.kind == BYTES:
            moved = REREAD * written
        counted = flops
        if kernel.kind == ATTENTION and causal:
            flops = int(flops * MASKED)
        seconds = rates.seconds(kernel, flops, moved, written)
        part = "attention" if kernel.kind == ATTENTION else "products" if flops else "bytes"
        times = kernel.times * batch / kernel.samples if kernel.samples else kernel.times
        found.append(Priced(kernel, part, seconds * times, *(kernel.at(n, batch) for n in (counted, again, moved))))
    return found


class Micro(NamedTuple):
    """One micro-batch on one device."""

    seconds: dict[str, float]  # by part
    by_direction: dict[str, float]
    model_flops: int  # of forward and backward, without scores that a fused attention makes again
    recomputed_flops: int


def micro_of(priced: Iterable[Priced]) -> Micro:
    """The sums of a micro-batch."""
    seconds = dict.fromkeys(("products", "attention", "bytes"), 0.0)
    by_direction = dict.fromkeys(DIRECTIONS, 0.0)
    model = recomputed = 0
    for one in priced:
        seconds[one.part] += one.seconds
        by_direction[one.kernel.direction] += one.seconds
        if one.kernel.direction == RECOMPUTE:
            recomputed += one.flops - one.again
        else:
            model += one.flops - one.again
    return Micro(seconds, by_direction, model, recomputed)
