"""What an iteration played: its events, what each storage is, its kernels, and what an allocator is asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from vramplan.replay.kernels import (
    Counted,
    Kernel,
    Launch,
    Launches,
    Noted,
    classes_of,
    kernels_of,
    stepped_of,
    together,
)
from vramplan.replay.recorder import Tape
from vramplan.replay.standing import StandingState
from vramplan.replay.tree import Nesting, events_in

if TYPE_CHECKING:
    from vramplan.replay.carried import Left
    from vramplan.replay.start import Start


Requests = list[tuple[str, list[int]]]  # of each phase: a storage that is asked for, ~storage that is freed


class Played:
    """One iteration as it was played, ready to be asked what ran in it and what it asked for."""

    def __init__(
        self,
        tape: Tape,
        states: list[StandingState],
        saved_at: int,
        managed_bytes: int = 0,
        *,
        ran: Launches | None = None,
    ) -> None:
        self.states = states
        self.managed_bytes = managed_bytes  # of states outside the allocator, which no figure here counts
        self.fixed = tape.fixed
        self.per_sample = tape.per_sample
        self.sized: dict[int, Callable[[int], int]] = tape.sized
        self.not_affine = tape.not_affine
        self.operators = tape.operators
        self.categories = tape.categories
        self.host: list[Any] = []  # what forward has saved there: vramplan/replay/offload.py, HostTensor
        self.host_states: Any = None  # what of the states lives there: vramplan/replay/sharding/hosted.py
        self.batch = tape.batch
        self.compared = tape.compared
        self.launches: list[Launch] = [] if ran is None else ran.launches
        self.counted: list[Counted] = [] if ran is None else ran.counted
        self.of_one = frozenset() if ran is None else frozenset(ran.of_one)
        self.stand_ins = frozenset() if ran is None else frozenset(ran.stand_ins)
        self.flops: dict[str, int] = {} if ran is None else ran.flops
        self.recomputed: dict[tuple[int, int], int] = {} if ran is None else ran.recomputed
        self.beside: tuple[Self, ...] = ()  # of the other parts of the model on this device of a pipeline
        self.earlier: Self | None = None  # of a micro-step before this one that is unlike it, and may hold more
        self.events = list(tape.events)
        self.phases = [(position, name) for position, name in tape.phases]
        self.saved_at = saved_at
        self.marks = list(tape.marks)
        self.numbers = list(tape.numbers)
        self.relabelled = frozenset(tape.relabelled)
        self.summed = dict(tape.unseen.summed)
        self.turned = dict(tape.unseen.turned)
        self.elsewhere = frozenset(tape.elsewhere)
        self.unjoined = frozenset(tape.unseen.unjoined)
        self._awaited = dict(tape.unseen.awaited)
        self._waits = tuple(tape.unseen.waits)
        self.left_whole = frozenset(tape.unseen.left_whole)
        self.carried: tuple[Left, ...] = ()  # what the iteration before has left, and this one leaves
        self.looked_at: tuple[tuple[int, int], ...] = ()  # from which event on which of several devices
        self.weight_bytes: tuple[int, ...] = ()  # of each weight or shard, where the replay plays every block
        # of each weight or shard: what it is made from on the device; the last of that goes when it is there
        self.load_bytes: tuple[tuple[int, ...], ...] = ()
        self.state_bytes: tuple[tuple[int, ...], ...] = ()  # of each one's states, which the first step makes
        self.stated_behind: tuple[int, ...] = ()  # the storage behind which it makes those of each; none: at its start
        self.start: Start | None = None  # what the program does before the iteration; None: weights one by one
        counts = [(p, p.elements * p.copies * p.parts) for p in tape.parameters]
        self.parameters = sum(count for _, count in counts)
        self.trainable_parameters = sum(count for p, count in counts if p.node is not None)
        self.reached_parameters = self.trainable_parameters - sum(count for p, count in counts if p.idle)
        self.stepped = stepped_of(tape.parameters)
        packed = [(count, p.quantized[0] * (count // p.elements)) for p, count in counts if p.quantized]
        # parameters of weights that are quantized, and the bytes that they are packed in, without what belongs to them
        self.packed = sum(count for count, _ in packed), sum(size for _, size in packed)
        self.nesting = Nesting(self.events, self.marks, tape.unseen.handed_on)
        self.trees = self.nesting.trees(self.phases)

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """What forward, recomputation and backward ran, of every part of the model that the device has."""
        return kernels_of(self._noted()) + tuple(kernel for other in self.beside for kernel in other.kernels)

    @cached_property
    def kernel_classes(self) -> tuple[Kernel, ...]:
        """The same, whichever unit they run in."""
        own = classes_of(self._noted())
        if not self.beside:
            return own
        return together((*own, *(kernel for other in self.beside for kernel in other.kernel_classes)))

    def _noted(self) -> Noted:
        scratch = (index for index, name in enumerate(self.categories) if name == "workspace")
        return Noted(
            self.batch,
            self.launches,
            self.counted,
            self.events,
            self.fixed,
            self.per_sample,
            self.of_one,
            frozenset(scratch) | self.stand_ins | self.elsewhere | self.relabelled | self._left_before,
            {index: self.sized[index] for index in self.not_affine if index in self.sized},
            next((position for position, name in self.phases if name == "step"), len(self.events)),
        )

    @cached_property
    def _renamed(self) -> tuple[dict[int, int], set[int]]:
        """Of storages that are others under a new component, those; and the storages that live on as another."""
        names: dict[int, int] = {}
        renamed: set[int] = set()
        for before, after in pairwise(self.events):
            if after >= 0 > before:
                if after in self.relabelled or self._is_added_to(after, ~before, 0):
                    names[after] = names.get(~before, ~before)
                    renamed.add(~before)
            elif before >= 0 > after and before not in names and self._is_added_to(before, ~after, 1):
                names[before] = names.get(~after, ~after)
                renamed.add(~after)
        return names, renamed

    def leaves(self) -> dict[int, str]:
        """Storages that the iteration leaves to the next, as `requests` names them, and what they are."""
        if not self.carried:
            return {}
        names, _ = self._renamed
        return {names.get(storage, storage): one.name for one in self.carried for storage in one.storages}

    @cached_property
    def awaited(self) -> dict[int, bool]:
        """Storages that another stream uses, as `requests` names them: they are free when it has come so far.

        Of each, whether it is so where it ends in forward, too.
        """
        if not self._awaited:
            return {}
        names, _ = self._renamed
        return {names.get(one, one): in_forward for one, in_forward in self._awaited.items()}

    @cached_property
    def waits(self) -> tuple[tuple[int, ...], ...]:
        """Of each phase of `requests` before which of its events the program waits for the device."""
        names, renamed = self._renamed
        found = []
        for (position, _), bound in zip(
            self.phases, [*(at for at, _ in self.phases[1:]), len(self.events)], strict=True
        ):
            here = [at for at in self._waits if position <= at < bound]
            left = [at for at in range(position, bound) if self.events[at] in names or ~self.events[at] in renamed]
            found.append(tuple(at - position - bisect_left(left, at) for at in here))
        return tuple(found)

    @cached_property
    def requests(self) -> Requests:
        """What an allocator is asked for, phase by phase, of a record that plays every block.

        A storage that was counted under another component from some moment on is one, under the name that it was born
        with. So is a gradient that another one is added to in place: the first of the two if nobody else holds it, or
        the second.
        """
        names, renamed = self._renamed
        found: Requests = []
        for (position, name), bound in zip(self.phases, [*(at for at, _ in self.phases[1:]), None], strict=True):
            events = self.events[position:bound]
            if names:
                events = [
                    one if one >= 0 else ~names.get(~one, ~one)
                    for one in events
                    if one not in names and ~one not in renamed
                ]
            found.append((name, events))
        return found

    def _is_added_to(self, total: int, gradient: int, place: int) -> bool:
        """Whether a sum of two gradients takes the block of the one of a place: it is not a part of a larger one."""
        met = self.summed.get(total)
        if met is None or met[place] != gradient:
            return False
        return self.fixed[total] == self.fixed[gradient] and self.per_sample[total] == self.per_sample[gradient]

    @cached_property
    def events_of_every_copy(self) -> int:
        """Births and deaths of an iteration in which every copy of a repeated unit is played."""
        return sum(events_in(items) for _, items in self.trees)

    @property
    def _left_before(self) -> frozenset[int]:
        return frozenset(one.stand_in for one in self.carried)
