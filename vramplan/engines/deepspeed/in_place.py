"""ZeRO, stages 1 and 2, without a contiguous bucket: gradients stay where they are, and a copy of several is averaged.

A bucket is a list of gradients. When it is averaged they are copied into one tensor, which is summed and copied back
into each; a single one is summed where it is. Of stage 2 those that a device has no use for go then, or, where the sums
overlap with backward, when the next bucket is averaged; of stage 1 all stay until backward is over. What the part of a
device has something of stays, whole, until its slices are put together for the step. A step on the host has a bucket
whatever is said.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py: reduce_independent_p_g_buckets_and_remove_grads,
reduce_ipg_grads, buffered_reduce_fallback, allreduce_bucket, independent_gradient_partition_epilogue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from vramplan.engines.deepspeed.layout import Flush, Layout
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.worst_device import DeviceHoldings, Worst, WorstDevicePolicy
from vramplan.engines.deepspeed.zero import COMMUNICATION, ZeroIteration
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import BYTE, Parameter, Tensor


class WorstInPlace(Worst):
    """The walk over the devices, which differ in the gradients that they have kept: each is a tensor of its own."""

    def __init__(
        self, layout: Layout, policy: WorstDevicePolicy, arrivals: Sequence[int], flushes: dict[int, Flush]
    ) -> None:
        super().__init__(layout, policy, arrivals, flushes)
        if policy.rank is not None or policy.shards == 1:
            self.ranks = (layout.most_loaded(last=True) if policy.rank is None or policy.rank < 0 else policy.rank,)
        self.starts = (0, *accumulate(self._bytes(one) for one in layout.sizes))
        self.sizes = {rank: self._whole(layout.members(rank)) for rank in self.ranks}
        self.reached = frozenset(arrivals)
        self.averages: list[int] = []  # gradients that were averaged, by the numbers of their parameters
        self.kept_bytes = dict.fromkeys(self.ranks, 0)

    def _whole(self, members: range) -> int:
        return self.starts[members.stop] - self.starts[members.start] if members else 0

    def add(self, group: Sequence[int]) -> DeviceHoldings:
        """These were averaged, and each device keeps those that are its own."""
        self.averages += group
        for one in group:
            for first, count, _ in self.layout.owners(one):
                for rank in self.ranks[bisect_left(self.ranks, first) : bisect_left(self.ranks, first + count)]:
                    self.kept_bytes[rank] += self._bytes(self.layout.sizes[one])
        return self._held(max(self.ranks, key=lambda rank: self.kept_bytes[rank] + self._earlier(rank)))

    def complete(self) -> DeviceHoldings:
        """All are averaged, zeros stand for those that backward has not come to, and the last part is padded.

        Of stage 1 the gradients of all parameters are still there.
        """
        every = range(len(self.layout.sizes))
        self.averages = [one for one in every if self.policy.partitions_gradients or one not in self.reached]
        return self._held(max(self.ranks, key=self._complete))

    def _complete(self, rank: int) -> int:
        members, padding = self.layout.members(rank), self._bytes(self._missing(self.layout.slices(rank)))
        held = [one for one in self.averages if one in members]
        return sum(self._bytes(self.layout.sizes[one]) for one in held) + self._earlier(rank) + padding

    def averaged(self) -> DeviceHoldings:
        """What is no device's own has gone."""
        self.averages = [*range(len(self.layout.sizes))]
        return super().averaged()

    def _earlier(self, rank: int) -> int:
        return self.sizes[rank] if self.has_earlier else 0

    def _averaged(self, rank: int) -> int:
        return self.sizes[rank] + self._bytes(self._missing(self.layout.slices(rank)))

    def _held(self, rank: int) -> DeviceHoldings:
        members = self.layout.members(rank)
        return DeviceHoldings(rank, has_own=False, left=tuple(one for one in self.averages if one in members))


class InPlace(ZeroIteration):
    """The walk of one iteration whose gradients stay where they are."""

    worst: WorstInPlace

    def __init__(self, tape: Tape, policy: WorstDevicePolicy, order: Order) -> None:
        super().__init__(tape, policy, order)
        self.worst = WorstInPlace(self.layout, policy, self.arrivals, self.flushes)
        self.kept: list[Tensor] = []  # gradients that the device has use for
        self.has_before = policy.partitions_gradients and policy.accumulating
        self.before: list[Tensor] = []  # those of earlier micro-steps
        self.waiting: list[Parameter] = []  # whose gradients are in the bucket
        self.in_next: list[Parameter] = []  # whose gradients go when the next bucket is averaged
        bounds = [0, *self.flushes]
        self.groups = {high: self.arrivals[low:high] for low, high in pairwise(bounds)}
        self.last_group: Sequence[int] = ()

    def before_forward(self) -> None:
        """Earlier micro-steps left gradients: stage 1 whole ones; stage 2 those that the device has use for."""
        self.begin()
        if self.policy.accumulating:
            self._stand_for_all()
            if self.has_before:
                self.look_at(self.worst.add(()))

    def _make_buckets(self) -> None:
        """None are made."""

    # ----------------------------------------------------------------------------------------------- gradients
    def after_accumulate(self, parameter: Parameter) -> None:
        """A gradient is complete, and stays; before it joins a bucket that is full, that one is averaged."""
        if not self.averages_as_they_come:
            return
        if self.came in self.flushes:
            self._average_group(self.came)
        if parameter in self.accumulated:
            parameter.grad = self.accumulated.pop(parameter)
        if self.policy.partitions_gradients:
            self.waiting.append(parameter)
        self.came += parameter.copies

    def _average_group(self, at: int) -> None:
        group = self.groups[at]
        if self.policy.partitions_gradients and self.policy.overlap_comm:
            self._let_others_go()
        if len(group) > 1:
            size = (sum(self.layout.sizes[one] for one in group),)
            copy = self.tape.new("cat", size, self.policy.dtype, False, category=COMMUNICATION)
            del copy
        if not self.policy.partitions_gradients:
            return
        self.in_next, self.waiting, self.last_group = self.waiting, [], group
        if not self.policy.overlap_comm:
            self._let_others_go()

    def _let_others_go(self) -> None:
        """Of the gradients that were averaged each device keeps those that it has use for."""
        for one in self.in_next:
            one.grad = None
        self.in_next = []
        if self.last_group:
            self.look_at(self.worst.add(self.last_group))
        self.last_group = ()

    def look_at(self, held: DeviceHoldings) -> None:
        """Go over to the device that holds most now."""
        if held == self.held:
            return
        self.kept.clear()
        if self.held is None or self.held.rank != held.rank:
            self.looked_at.append((len(self.tape.events), held.rank))
            if self.has_before:
                self.before.clear()
                self.before = self._gradients(self.layout.members(held.rank))
        self.rank, self.held = held.rank, held
        self.kept = self._gradients(held.left)

    def _gradients(self, numbers: Iterable[int]) -> list[Tensor]:
        """Whole gradients: one by one where an allocator plays them."""
        sizes = [self.layout.sizes[one] for one in numbers]
        if self.tape.unrolled:
            return [self.tape.new("gradients", (one,), self.policy.dtype, False, category="gradients") for one in sizes]
        total = sum(rounded(one * self.policy.dtype.itemsize) for one in sizes)
        return [self.tape.new("gradients", (total,), BYTE, False, category="gradients")] if total else []

    def after_backward(self) -> list[Parameter]:
        """What is left is averaged; then the gradients of all parameters go, but those that the device has use for."""
        for at in self.flushes:
            if not self.averages_as_they_come or at == len(self.arrivals):
                self._average_group(at)
        self._let_others_go()
        self.losses.clear()
        self.look_at(self.worst.complete())
        self._pad()
        self._let_go()
        self.padding, self.has_before = None, False
        self.before.clear()
        self.look_at(self.worst.averaged())
        self._pad()
        return [*self._parts(), *(one for one in self.tape.parameters if one.node is None and not one.idle)]

    def whole_own(self) -> Tensor | None:
        """The gradient of the only parameter that the part has something of."""
        return self.kept[0] if self.kept else None

    def let_own_go(self) -> None:
        """The averaged gradients go: they were put together."""
        super().let_own_go()
        self.kept.clear()
