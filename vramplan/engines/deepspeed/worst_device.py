"""Which device of ZeRO 1 or 2 holds most, moment by moment: they differ in what each keeps of the gradients.

All devices make the same gradients at the same time and average them in the same buckets. What differs is the buffer
for the parameters that have something in the part, from when on it is there, which large gradients stay that the
device has no use for (stage 1), and the pieces of the part in the step. At no other moment does a device differ from
the others, so the largest of these at each moment, beside what all have, is the most loaded device at that moment.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from vramplan.replay.recorder import rounded
from vramplan.replay.tensors import FP32, FP64, DType
from vramplan.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramplan.engines.deepspeed.layout import Flush, Layout

SCALAR_BYTES = rounded(4)
OVERFLOW_SCALARS = 7  # that are there at a time while gradients are looked at (zero.py)


class WorstDevicePolicy(NamedTuple):
    """What a job says of its partitions."""

    partitions_gradients: bool  # stage 2
    shards: int  # devices that share the states
    dtype: DType  # of weights and gradients
    reduce_bucket_size: int  # elements
    overlap_comm: bool = False  # a second bucket is filled while the first is averaged
    accumulating: bool = False  # earlier micro-steps have left gradients
    scales_loss: bool = True
    own_adam: bool = True  # FusedAdam, which has a buffer
    bounds_norm: bool = False  # gradients are clipped by the norm, which is taken in any case
    steps: tuple[str, str] | None = None  # PyTorch's optimizer and its implementation; None: a kernel of another's
    rank: int | None = None  # the device that is looked at; None: at each moment the one that holds most then
    flat_on_device: bool = True  # the weights are put together on the device, else on the host


class DeviceHoldings(NamedTuple):
    """What a device has that others have not."""

    rank: int
    has_own: bool  # the averaged gradients of its part
    left: tuple[int, ...] = ()  # large gradients that it has no use for, by their numbers
    norms: int = 0  # of pieces of its part, where the step is on the host


class Worst:
    """The walk over the moments of an iteration at which another device may come to hold most."""

    def __init__(
        self, layout: Layout, policy: WorstDevicePolicy, arrivals: Sequence[int], flushes: dict[int, Flush]
    ) -> None:
        self.layout, self.policy = layout, policy
        self.ranks = layout.telling_ranks
        self.begun: set[int] = set()
        self.sizes = {rank: self._bytes(layout.whole_elements(rank)) for rank in self.ranks}
        bounds = [0, *flushes]
        groups = [arrivals[low:high] for low, high in pairwise(bounds)]
        self.by_size = sorted(self.ranks, key=lambda rank: (-self.sizes[rank], rank))
        self.pieces: dict[int, dict[int, list[int]]] = {}  # of each time that a bucket is averaged, by the device
        for group, flush in zip(groups, flushes.values(), strict=True):
            found = self.pieces[id(flush)] = {}
            for one in group:
                for first, count, elements in layout.owners(one):
                    for rank in self.ranks[bisect_left(self.ranks, first) : bisect_left(self.ranks, first + count)]:
                        found.setdefault(rank, []).append(elements)
        self.large = {
            id(flush): group[0]
            for group, flush in zip(groups, flushes.values(), strict=True)
            if layout.sizes[group[0]] > policy.reduce_bucket_size and not policy.partitions_gradients
        }
        # stage 2 has those of earlier micro-steps besides
        self.has_earlier = policy.partitions_gradients and policy.accumulating
        self.first: int | None = None  # of those that have begun the one with most
        self.lost: list[int] = []  # the large gradients until now
        self.lost_bytes = 0
        self.own_large: dict[int, set[int]] = {}  # those of them that each device has use for, and their bytes
        self.own_large_bytes: dict[int, int] = {}

    def _bytes(self, elements: int) -> int:
        return rounded(elements * self.policy.dtype.itemsize)

    def kept(self, flush: Flush) -> DeviceHoldings:
        """A bucket was averaged, and each device has copied what is its own."""
        new = self.pieces[id(flush)].keys() - self.begun
        self.begun |= new
        if new:
            best = max(sorted(new), key=self.sizes.__getitem__)
            if self.first is None or self.sizes[best] > self.sizes[self.first]:
                self.first = best
        return self._most()

    def left(self, flush: Flush) -> DeviceHoldings:
        """A gradient that was larger than the bucket went, but where nobody asks for it."""
        one = self.large.get(id(flush))
        if one is not None and one not in self.lost:
            size = self._bytes(self.layout.sizes[one])
            self.lost.append(one)
            self.lost_bytes += size
            for rank in self.pieces[id(flush)]:
                self.own_large.setdefault(rank, set()).add(one)
                self.own_large_bytes[rank] = self.own_large_bytes.get(rank, 0) + size
        return self._most()

    def _most(self) -> DeviceHoldings:
        def size(rank: int) -> int:
            own = self.sizes[rank] * ((rank in self.begun) + self.has_earlier)
            return own + self._left_bytes(rank)

        if not self.lost and not self.has_earlier and self.first is not None:
            return self._held(self.first)
        # of those that are alike but for their sizes the largest is enough; there may be a thousand
        some = set(self.own_large)
        for has_begun in (True, False):
            alike = (rank for rank in self.by_size if (rank in self.begun) is has_begun and rank not in self.own_large)
            some.update(islice(alike, 1))
        return self._held(max(sorted(some), key=size))

    def _left_bytes(self, rank: int) -> int:
        return self.lost_bytes - self.own_large_bytes.get(rank, 0)

    def _left_by(self, rank: int) -> tuple[int, ...]:
        return tuple(one for one in self.lost if one not in self.own_large.get(rank, ()))

    def _held(self, rank: int) -> DeviceHoldings:
        return DeviceHoldings(rank, rank in self.begun, self._left_by(rank) if self.lost else ())

    def averaged(self) -> DeviceHoldings:
        """All is averaged, and the last part padded."""

        return self._held(max(self.ranks, key=lambda rank: self._left_bytes(rank) + self._averaged(rank)))

    def _averaged(self, rank: int) -> int:
        return (self.sizes[rank] if rank in self.begun else 0) + self._bytes(self._missing(self.layout.slices(rank)))

    def _missing(self, slices: Sequence[int]) -> int:
        return self.layout.part - sum(slices)

    def stepping(self) -> DeviceHoldings:
        """Norms piece by piece in fp64; then the part flat, in 16 bits if it is of several tensors, and in fp32."""
        part = self.layout.part

        def size(rank: int) -> int:
            slices = self.layout.slices(rank)
            wide = [rounded(one * FP64.itemsize) + i * SCALAR_BYTES for i, one in enumerate(slices, 1)]
            tensors = len(slices) + (self._missing(slices) > 0)
            flat = self._bytes(part) if tensors > 1 else 0
            cast = rounded(part * FP32.itemsize) if self.policy.dtype is not FP32 else 0
            # the norm of all: two tensors of the norms of each, then five numbers
            norms = len(slices) * SCALAR_BYTES + max(2 * rounded(len(slices) * FP64.itemsize), 5 * SCALAR_BYTES)
            least = OVERFLOW_SCALARS * SCALAR_BYTES
            return self._averaged(rank) + max([*wide, least, norms, flat + cast + 2 * SCALAR_BYTES])

        self.lost.clear()
        return self._held(max(self.ranks, key=size))


class WorstOnHost(Worst):
    """The same where the step is on the host: pieces pass by in fp64 and fp32, and leave a norm each."""

    def __init__(
        self, layout: Layout, policy: WorstDevicePolicy, arrivals: Sequence[int], flushes: dict[int, Flush]
    ) -> None:
        super().__init__(layout, policy, arrivals, flushes)
        self.norms = dict.fromkeys(self.ranks, 0)

    def kept(self, flush: Flush) -> DeviceHoldings:
        """A bucket was averaged: who has the largest piece of it, beside what it has left."""
        pieces = self.pieces[id(flush)]

        def size(rank: int) -> int:
            wide = [rounded(one * FP64.itemsize) + i * SCALAR_BYTES for i, one in enumerate(pieces.get(rank, ()), 1)]
            return self._between(rank) + max(wide, default=0)

        found = self._held(max(self.ranks, key=size))
        for rank, own in pieces.items():
            self.norms[rank] += len(own)
        return found

    def of(self, flush: Flush, rank: int) -> tuple[int, ...]:
        """The pieces of a device."""
        return tuple(self.pieces[id(flush)].get(rank, ()))

    def _between(self, rank: int) -> int:
        return self._left_bytes(rank) + self.norms[rank] * SCALAR_BYTES

    def most(self) -> DeviceHoldings:
        """Between two times that a bucket is averaged."""
        return self._held(max(self.ranks, key=self._between))

    def left(self, flush: Flush) -> DeviceHoldings:
        """A gradient that was larger than the bucket went, but where nobody asks for it."""
        super().left(flush)
        return self.most()

    def _averaged(self, rank: int) -> int:
        return self.norms[rank] * SCALAR_BYTES + self._bytes(self._missing(self.layout.slices(rank)))

    def stepping(self) -> DeviceHoldings:
        """The norms are added up."""
        self.lost.clear()
        self.lost_bytes = 0
        self.own_large_bytes.clear()
        return self.most()

    def _held(self, rank: int) -> DeviceHoldings:
        return DeviceHoldings(
            rank, has_own=False, left=self._left_by(rank) if self.lost else (), norms=self.norms[rank]
        )
