"""How ZeRO lays out what it partitions: all trained parameters one after the other, cut into equal parts.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer); deepspeed/runtime/utils.py,
align_dense_tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

from vramplan.tuples import NamedTuple

ALIGNMENT = 2  # elements of each part that a collective may begin at (nccl_start_alignment_factor)


class Layout:
    """Parameters one after the other in a flat buffer, padded, in as many equal parts as there are shards."""

    def __init__(self, sizes: Sequence[int], shards: int) -> None:
        self.sizes = tuple(sizes)  # elements of each parameter
        self.shards = shards
        self.starts = (0, *accumulate(sizes))
        self.elements = self.starts[-1]
        unit = ALIGNMENT * shards
        self.padded = -(-self.elements // unit) * unit
        self.part = self.padded // shards

    def members(self, rank: int) -> range:
        """The parameters of which something is in a part."""
        low, high = rank * self.part, min((rank + 1) * self.part, self.elements)
        if low >= high:
            return range(0)
        return range(bisect_right(self.starts, low) - 1, bisect_right(self.starts, high - 1))

    def whole_elements(self, rank: int) -> int:
        """Elements of the parameters of which something is in a part, each of them whole."""
        members = self.members(rank)
        return self.starts[members.stop] - self.starts[members.start] if members else 0

    def slices(self, rank: int) -> list[int]:
        """Elements of each parameter that are in a part."""
        low, high = rank * self.part, (rank + 1) * self.part
        return [min(self.starts[i + 1], high) - max(self.starts[i], low) for i in self.members(rank)]

    def owners(self, one: int) -> Iterator[tuple[int, int, int]]:
        """The parts that a parameter lies in: the first of a run, how many follow, and the elements in each of them.

        There are at most three runs: those that it fills are one, so that a million devices are no more than eight.
        """
        start, end = self.starts[one], self.starts[one + 1]
        while start < end:
            rank, inside = divmod(start, self.part)
            whole = 0 if inside else (end - start) // self.part
            elements = self.part if whole else min(end - start, self.part - inside)
            yield rank, max(whole, 1), elements
            start += max(whole, 1) * elements

    def elements_in(self, one: int, rank: int) -> int:
        """How many elements of a parameter are in a part."""
        low, high = max(self.starts[one], rank * self.part), min(self.starts[one + 1], (rank + 1) * self.part)
        return max(0, high - low)

    def most_loaded(self, *, last: bool) -> int:
        """The part whose parameters, whole, are most; of several such parts the last or the first."""
        ranks = self.telling_ranks
        return max(reversed(ranks) if last else ranks, key=self.whole_elements)

    @cached_property
    def telling_ranks(self) -> tuple[int, ...]:
        """Every part but those inside one parameter, which are alike: of these the first and the last."""
        found = {0, self.shards - 1, min(-(-self.elements // self.part), self.shards - 1) if self.part else 0}
        for start, end in pairwise(self.starts):
            if start < end:
                first, last = start // self.part, (end - 1) // self.part
                found.update(one for one in (first, first + 1, last - 1, last) if first <= one <= last)
        return tuple(sorted(found))


class Flush(NamedTuple):
    """One time that a bucket of gradients is averaged."""

    copies: tuple[int, ...]  # elements of each copy that is made of it, one after the other
    own: tuple[int, ...]  # elements of each piece of it that belongs to this device's part

    @property
    def brings_own(self) -> bool:
        """Whether something of it belongs to this device's part."""
        return bool(self.own)


def flushes(
    layout: Layout, arrivals: Sequence[int], bucket: int, rank: int, *, by_parameter: bool = False
) -> dict[int, Flush]:
    """When buckets are averaged, by how many gradients have come until then.

    A bucket is averaged when the next gradient has no room in it, and when all are there. Neighbouring pieces that
    belong to one part are one piece, but not where each goes into a buffer of its own parameter.
    Source: stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_and_scatter.
    """
    found: dict[int, Flush] = {}
    members = layout.members(rank)
    held: list[int] = []
    elements = 0
    for position, one in enumerate((*arrivals, None)):
        if held and (one is None or elements + layout.sizes[one] > bucket):
            copies = _copies(layout, held, bucket, rank if by_parameter else None)
            mine = (layout.elements_in(each, rank) for each in held if each in members)
            found[position] = Flush(copies, tuple(mine))
            held, elements = [], 0
        if one is not None:
            held.append(one)
            elements += layout.sizes[one]
    return found


def _copies(layout: Layout, held: Sequence[int], bucket: int, own: int | None) -> tuple[int, ...]:
    pieces: list[int] = []
    before = -1
    for one in held:
        for first, count, elements in layout.owners(one):
            joins = first == before and first != own
            if joins:
                pieces[-1] += elements
            pieces += [elements] * (count - joins)
            before = first + count - 1
    copies, count, size = [], 0, 0
    for piece in pieces:
        count, size = count + 1, size + piece
        if size > bucket:
            copies.append(size if count > 1 else 0)
            count = size = 0
    copies.append(size if count > 1 else 0)
    return tuple(size for size in copies if size)
