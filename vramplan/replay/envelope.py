"""Peak as a function of the micro-batch: the upper envelope of lines.

Every level of a record is affine in the micro-batch, so its peak is the maximum of a handful of lines. What is not
affine (workspaces with a minimum or a threshold inside, similarities of all pairs of samples) keeps its function: of
the levels at which the same of these are alive, the peak is the maximum of lines again. Fixed sizes are rounded to
allocator blocks, sizes per sample are not: against the exact sum that is below 512 bytes per living tensor.
"""

from __future__ import annotations

from collections.abc import Hashable

from vramplan.replay.record import Record
from vramplan.replay.tree import EventRun, Item, Repeat, events_of

Line = tuple[int, int]  # fixed bytes, bytes per sample
Alive = tuple[int, ...]  # storages that are not affine


class Envelope:
    """The peak of a record at any micro-batch it is valid for."""

    def __init__(self, record: Record) -> None:
        found = _levels(record)
        lines = found.pop(())
        self.largest: dict[Hashable, int] = {}  # micro-batches that were looked for: vramplan/planner/judge.py
        self.curved = [(upper_hull(of), [record.sized[one] for one in key]) for key, of in found.items()]
        if record.earlier is not None:
            before: Envelope = envelope_of(record.earlier)
            lines += before.lines
            self.curved += before.curved
        self.lines: list[Line] = upper_hull(lines)

    def peak_bytes(self, batch: int) -> int:
        """Peak of the iteration at a micro-batch."""
        top = max(fixed + per_sample * batch for fixed, per_sample in self.lines)
        for lines, sizes in self.curved:
            level = max(fixed + per_sample * batch for fixed, per_sample in lines)
            top = max(top, level + sum(size(batch) for size in sizes))
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


def envelope_of(record: Record) -> Envelope:
    """That of a record, which keeps it."""
    found: Envelope | None = record.envelope
    if found is None:
        found = record.envelope = Envelope(record)
    return found


def _levels(record: Record) -> dict[Alive, list[Line]]:
    """The local maxima of a record, by the storages that are not affine and alive then."""
    fixed = sum(state.fixed_bytes * state.copies for state in record.states)
    per_sample = sum(state.per_sample_bytes * state.copies for state in record.states)
    level = (fixed, per_sample)
    found: dict[Alive, list[Line]] = {(): [level]}
    alive: list[int] = []
    for _, items in record.trees:
        net = _collect(items, record, level, found, alive)
        level = (level[0] + net[0], level[1] + net[1])
    return found


def _collect(items: list[Item], record: Record, start: Line, found: dict[Alive, list[Line]], alive: list[int]) -> Line:
    """Add the local maxima above `start`, each where the same storages that are not affine are alive; return the change
    of the level.
    """
    fixed, per_sample = start
    sizes_fixed, sizes_sample = record.fixed, record.per_sample
    not_affine = record.not_affine
    for item in items:
        if isinstance(item, Repeat):
            level = (fixed, per_sample)
            net = _collect(item.items, record, level, found, alive)
            last = item.copies - 1
            if net != (0, 0):  # levels are linear in the copy index: the last copy bounds with the first
                _collect(item.items, record, (fixed + last * net[0], per_sample + last * net[1]), found, alive)
            fixed += item.copies * net[0]
            per_sample += item.copies * net[1]
            continue
        rising = False
        if isinstance(item, EventRun):
            for index in item.events:
                if index >= 0:
                    rising = True
                    if index in not_affine:
                        alive.append(index)
                    fixed += sizes_fixed[index]
                    per_sample += sizes_sample[index]
                    continue
                if rising:
                    found.setdefault(tuple(alive), []).append((fixed, per_sample))
                    rising = False
                index = ~index
                if index in not_affine:
                    alive.remove(index)
                fixed -= sizes_fixed[index]
                per_sample -= sizes_sample[index]
            if rising:
                found.setdefault(tuple(alive), []).append((fixed, per_sample))
            continue
        for _, storage, copies in events_of(item):  # deaths of several copies
            if storage in not_affine:
                alive.remove(storage)
            fixed += sizes_fixed[storage] * copies
            per_sample += sizes_sample[storage] * copies
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
