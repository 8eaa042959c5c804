"""Peak as a function of the micro-batch: the upper envelope of lines.

Every level of a record is affine in the micro-batch, so its peak is the maximum of a handful of lines. The one kind of
scratch that is not affine (workspaces with a minimum or a threshold inside) keeps its function. Fixed sizes are rounded
to allocator blocks, sizes per sample are not: against the exact sum that is below 512 bytes per living tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.tape.record import Item, Record, Repeat

Line = tuple[int, int]  # fixed bytes, bytes per sample


class Scratch(NamedTuple):
    """A level with a workspace on top that is not affine."""

    line: Line
    size: Callable[[int], int]


class Envelope:
    """The peak of a record at any micro-batch it is valid for."""

    def __init__(self, record: Record) -> None:
        fixed = sum(state.fixed_bytes for state in record.states)
        per_sample = sum(state.per_sample_bytes for state in record.states)
        lines: list[Line] = [(fixed, per_sample)]
        self.scratch: list[Scratch] = []
        level = (fixed, per_sample)
        for _, items in record.trees:
            net = _collect(items, record, level, lines, self.scratch)
            level = (level[0] + net[0], level[1] + net[1])
        self.lines = upper_hull(lines)

    def peak_bytes(self, batch: int) -> int:
        """Peak of the iteration at a micro-batch."""
        top = max(fixed + per_sample * batch for fixed, per_sample in self.lines)
        for (fixed, per_sample), size in self.scratch:
            top = max(top, fixed + per_sample * batch + size(batch))
        return top

    def largest_batch(self, limit_bytes: int, most: int) -> int:
        """The largest micro-batch up to `most` whose peak is within the limit; 0 if none.

        The lines rise (every level holds the inputs at least), so the peak is monotone and bisection is safe.
        """
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.peak_bytes(middle) <= limit_bytes:
                low = middle
            else:
                high = middle - 1
        return low


def _collect(items: list[Item], record: Record, start: Line, lines: list[Line], scratch: list[Scratch]) -> Line:
    """Append the local maxima above `start`; return the change of the level."""
    fixed, per_sample = start
    sizes_fixed, sizes_sample, sized = record.fixed, record.per_sample, record.sized
    not_affine = record.not_affine
    for item in items:
        if isinstance(item, Repeat):
            level = (fixed, per_sample)
            net = _collect(item.items, record, level, lines, scratch)
            last = item.copies - 1
            if net != (0, 0):  # levels are linear in the copy index: the last copy bounds with the first
                _collect(item.items, record, (fixed + last * net[0], per_sample + last * net[1]), lines, scratch)
            fixed += item.copies * net[0]
            per_sample += item.copies * net[1]
            continue
        rising = False
        for _, storage, copies in item:
            if copies > 0:
                if storage in not_affine:
                    scratch.append(Scratch((fixed, per_sample), sized[storage]))
                rising = True
            elif rising:
                lines.append((fixed, per_sample))
                rising = False
            fixed += sizes_fixed[storage] * copies
            per_sample += sizes_sample[storage] * copies
        if rising:
            lines.append((fixed, per_sample))
    return fixed - start[0], per_sample - start[1]


def upper_hull(lines: list[Line]) -> list[Line]:
    """The lines that are highest for some micro-batch of at least 1, by slope."""
    best: dict[int, int] = {}
    for fixed, per_sample in lines:
        if fixed > best.get(per_sample, -1):
            best[per_sample] = fixed
    hull: list[Line] = []
    for per_sample in sorted(best):
        line = (best[per_sample], per_sample)
        while hull and line[0] + line[1] >= hull[-1][0] + hull[-1][1]:
            hull.pop()  # steeper and already higher at 1
        while len(hull) > 1 and not _needed(hull[-2], hull[-1], line):
            hull.pop()
        hull.append(line)
    return hull


def _needed(a: Line, b: Line, c: Line) -> bool:
    """Whether b (slope between a and c) is above both somewhere: where a meets c, b is higher."""
    # a and c meet at x = (a0 - c0) / (c1 - a1); b is needed if b0 + b1 x > a0 + a1 x there
    return (b[0] - a[0]) * (c[1] - a[1]) + (b[1] - a[1]) * (a[0] - c[0]) > 0
