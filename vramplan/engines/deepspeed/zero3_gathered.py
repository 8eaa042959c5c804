"""What is gathered under stage 3 of DeepSpeed's ZeRO, ahead of its use, and what goes again.

zero3_gathering.py walks over the modules that ask for them.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/partitioned_param_coordinator.py (PartitionedParameterCoordinator),
partition_parameters.py (AllGatherHandle, AllGatherCoalescedHandle, NoGatherHandle).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero import COMMUNICATION
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.replay.observers import Observer
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import Tensor

GATHERED = "gathered"  # component of the answer


MAX_REUSE_DISTANCE = 1_000_000_000  # elements (deepspeed/runtime/zero/config.py, stage3_max_reuse_distance)


class NoTape:
    """The tape of a walk without tensors."""

    recomputing = None
    unrolled = False

    def relabel(self, tensor: Any, category: str) -> None:
        """There is none."""

    def several(self, *given: Any) -> None:
        """There is none."""

    def on_another_stream(self, tensor: Any) -> Any:
        """There is none."""
        return tensor

    def freed_late(self, tensor: Any, *, in_forward: bool = True) -> None:
        """There is none."""

    def waits_for_device(self) -> None:
        """There is none."""


class Handle:
    """One collective: the buffer that it writes lives until each of its parameters has been waited for."""

    def __init__(self, members: Sequence[int], buffers: Sequence[Tensor]) -> None:
        self.members, self.buffers = tuple(members), tuple(buffers)  # one of each element type
        self.arrived: dict[int, Tensor | None] = {}  # where one device has all: what was copied to it
        self.is_complete = False


class Gathered(Observer):
    """The parameters of a device in one iteration: whole, coming, or a part alone."""

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order) -> None:
        self.tape, self.policy, self.order = tape, policy, order
        self.sizes = order.sizes
        eight_bits = {one for one, has in enumerate(order.eight_bits) if has}
        # of whole parameters and of their parts, in elements of the other weights
        several = policy.dtype.itemsize  # numbers of 8 bits in the place of one element
        self.wholes = [-(-size // several) if one in eight_bits else size for one, size in enumerate(order.sizes)]
        parts = [-(-size // policy.shards) for size in order.sizes]
        self.parts = [-(-part // several) if one in eight_bits else part for one, part in enumerate(parts)]
        self.eight_bits = frozenset(eight_bits)
        self.stays = [size <= policy.zero.param_persistence_threshold for size in order.sizes]
        self.trained = [one for one, is_trained in enumerate(order.trained) if is_trained]
        self.frozen = frozenset(range(len(order.sizes))).difference(self.trained)
        self.before = (0, *accumulate(sum(order.sizes[one] for one in module) for module in order.uses))
        self.comes: dict[int, list[int]] = {}  # at which steps a parameter is used
        for step, module in enumerate(order.uses):
            for one in module:
                self.comes.setdefault(one, []).append(step)
        self.queue = deque((one, step) for step, module in enumerate(order.uses) for one in sorted(module))
        self.fetched_for = [-1] * len(order.sizes)  # the last step that a parameter is known to be needed for
        self.step = 0
        self.live = 0  # elements that are gathered
        self.whole: dict[int, Tensor | None] = {}  # None: the part is the whole
        self.coming: dict[int, Handle] = {}
        self.leaving: tuple[int, ...] = ()  # the parameters of the module that runs
        self.held: Counter[int] = Counter()  # by how many modules with others inside that run
        self.recomputed: set[int] = set()  # those not trained that a checkpoint has gathered again
        self.is_over = False  # the module whose backward made the checkpoint run again

    def _fetch(self, members: tuple[int, ...]) -> None:
        """What a module asks for is waited for in the order in which the module has it: a weight before its bias.

        DeepSpeed has it in a set, of which the first two come in the order in which they were put there.
        Source: partitioned_param_coordinator.py, _fetch_sub_module_impl.
        """
        self._gather([one for one in members if one not in self.whole and one not in self.coming])
        for one in sorted(members):
            handle = self.coming.pop(one, None)
            if handle is not None:
                self._wait(handle)
        if self.tape.recomputing is not None:
            self.recomputed.update(self.frozen.intersection(members))
        missing = sum(self.fetched_for[one] < self.step for one in members)
        seen: set[int] = set()
        while self.queue and len(seen) < missing:
            one, step = self.queue.popleft()
            self.fetched_for[one] = step
            seen.add(one)
        self._prefetch()
        self.step += 1
        self.leaving = members

    def _prefetch(self) -> None:
        """Gather what comes next, up to a number of elements."""
        if not self.policy.learns:
            return
        zero = self.policy.zero
        room = min(zero.max_live_parameters - self.live, zero.prefetch_bucket_size)
        ahead: list[int] = []
        elements = 0
        while self.queue and elements < room and not self._is_away(self.queue[0][0]):
            one, step = self.queue.popleft()
            self.fetched_for[one] = max(self.fetched_for[one], step)
            if one not in self.whole and one not in self.coming and one not in ahead:
                ahead.append(one)
                elements += self.sizes[one]
        self._gather(ahead)

    def _is_away(self, one: int) -> bool:
        """Whether a part is where it cannot be gathered from."""
        return False

    def _gather(self, wanted: Sequence[int]) -> None:
        """One parameter is gathered where it will be; of several each is copied out of the buffer.

        Source: partition_parameters.py, all_gather_coalesced.
        """
        if not wanted:
            return
        self.live += sum(self.sizes[one] for one in wanted)
        shards = self.policy.shards
        if shards == 1:
            self._look_at(wanted)
            return
        elements = [0, 0]
        for one in wanted:
            elements[one in self.eight_bits] += self.parts[one] * shards
        buffers = [self._apart("all_gather", size, COMMUNICATION) for size in elements if size]
        handle = Handle(sorted(wanted), buffers)
        for one in wanted:
            self.coming[one] = handle

    def _look_at(self, wanted: Sequence[int]) -> None:
        """One device has the whole parameters."""
        handle = Handle(wanted, ())
        for one in wanted:
            handle.arrived[one] = self._arrive(one)
            self.coming[one] = handle

    def _arrive(self, one: int, category: str = GATHERED) -> Tensor | None:
        """What is whole where nothing is gathered: nothing new."""
        return None

    def _wait(self, handle: Handle) -> None:
        """Source: partition_parameters.py, AllGatherCoalescedHandle.wait."""
        if handle.is_complete:
            return
        handle.is_complete = True
        if self.policy.shards == 1:
            for one in handle.members:
                self.whole[one] = handle.arrived.get(one)
            handle.arrived.clear()
            return
        if len(handle.members) == 1:
            self.tape.relabel(handle.buffers[0], GATHERED)
            self._receive(handle.members[0], handle.buffers[0])
            return
        for one in handle.members:
            self._receive(one, self._apart("cat", self.wholes[one], GATHERED))

    def _receive(self, one: int, whole: Tensor) -> None:
        self.whole[one] = whole
        if one not in self.frozen:
            self.tape.freed_late(whole, in_forward=False)

    def _let_go(self) -> None:
        """The module is over: its parameters go, but for those that are needed again soon.

        Source: partitioned_param_coordinator.py, __params_to_release.
        """
        members, self.leaving = self.leaving, ()
        for one in members:
            if one in self.recomputed:
                continue  # it belongs to the module whose backward made it run again
            if not self.policy.learns:  # all goes then, small ones too
                if not self.held[one] and one in self.whole:
                    self._drop(one)
                continue
            if self.stays[one] or self.held[one] or self.fetched_for[one] > self.step or one not in self.whole:
                continue
            steps = self.comes[one]
            at = bisect_right(steps, self.step - 1)
            keeps = self.policy.keeps_frozen and one in self.frozen
            if at < len(steps) and (keeps or self.before[steps[at]] - self.before[self.step] < MAX_REUSE_DISTANCE):
                continue
            self._drop(one)
        if self.is_over:
            for one in sorted(self.recomputed):
                if one in self.whole and not self.stays[one]:
                    self._drop(one)
            self.recomputed.clear()
            self.is_over = False

    def _drop(self, one: int) -> None:
        del self.whole[one]
        self.live -= self.sizes[one]

    def _gather_small(self) -> None:
        """Parameters that are always whole."""
        small, shards = [one for one, stays in enumerate(self.stays) if stays], self.policy.shards
        if shards == 1:
            self.whole.update({one: self._arrive(one, "weights") for one in small})
            return
        # nothing else happens meanwhile, and all but those of 8 bits go together: equal ones are one event
        alike = self.policy.learns and not self.tape.unrolled  # they go one by one
        apart = self.eight_bits | self._held_otherwise() if alike else frozenset(small)
        copies = Counter([self.parts[one] for one in small if one not in apart])
        shared: dict[int, Tensor] = {}
        for one in small:
            part = self.parts[one]
            if one in apart:
                self.whole[one] = self._new("all_gather", part * shards, "weights")
                continue
            if part not in shared:
                each = (part * shards,)
                shared[part] = self.tape.several("all_gather", each, self.policy.dtype, copies[part], "weights")
            self.whole[one] = shared[part]

    def _held_otherwise(self) -> frozenset[int]:
        """Of quantized weights those in a first block, whose functions hold none where nothing before it is trained."""
        places = self.order.places if self.order.kept_bytes else ()
        return frozenset(one for one, place in enumerate(places) if place is not None and place[1] == 0)

    @property
    def frozen_bytes(self) -> int:
        """The parts of what is not trained, each a tensor of its own."""
        return sum(rounded(self.parts[one] * self.policy.dtype.itemsize) for one in self.frozen)

    def _apart(self, operator: str, elements: int, category: str) -> Tensor:
        """What a collective works with: a stream of its own is current then.

        Source: partitioned_param_coordinator.py, __allgather_stream; stage3.py, reduce_and_partition_stream.
        """
        return self.tape.on_another_stream(self._new(operator, elements, category))

    def _new(self, operator: str, elements: int, category: str) -> Tensor:
        return self.tape.new(operator, (elements,), self.policy.dtype, False, category=category)
