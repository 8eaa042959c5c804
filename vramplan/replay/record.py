"""The finished record: levels, peaks and components at any micro-batch, and the envelope over all of them.

The list of events is a tree (vramplan/replay/tree.py), over which every figure here is a sum or a highest level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.kernels import Launches
from vramplan.replay.played import Played
from vramplan.replay.recorder import Tape
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import ALLOCATOR_BLOCK_BYTES
from vramplan.replay.tree import Item, Moment, both_signs, climb, flattened, items_of, locate, tally

BEFORE_FORWARD = ("gradients", "weights", "in_flight")
"""Categories that exist before a forward pass begins, so that they are not saved by it.

`gradients` of earlier micro-steps, `weights` that an engine keeps whole, and `in_flight`, which belongs to other
micro-batches of a pipeline.
"""


class Record(Played):
    """One iteration, ready to be asked. Valid for every micro-batch above 1, or for 1 alone (or for one, if direct)."""

    def __init__(
        self,
        tape: Tape,
        states: list[StandingState],
        saved_at: int,
        managed_bytes: int = 0,
        *,
        ran: Launches | None = None,
    ) -> None:
        super().__init__(tape, states, saved_at, managed_bytes, ran=ran)
        self._count_states()
        self._forget()

    def _forget(self) -> None:
        """Drop what is kept of answers: the sizes of the last micro-batch, and a few figures of each."""
        self._sizes: dict[int, list[int]] = {}
        self._signed: dict[int, list[int]] = {}
        self._peaks: dict[int, dict[str, int]] = {}
        self._own: dict[int, dict[str, int]] = {}
        self._tops: dict[int, int] = {}
        self._largest: dict[int, int] = {}
        self._stranded: dict[tuple[int, bool], int] = {}
        self._worst: dict[int, tuple[str, Moment]] = {}
        self._few: dict[frozenset[int], list[tuple[str, list[Item]]]] = {}
        self.envelope: Any = None  # of every micro-batch above 1: vramplan/replay/envelope.py

    def end_before(self, phase: str) -> None:
        """Leave out a phase and what comes after it."""
        count, end = next((count, at) for count, (at, name) in enumerate(self.phases) if name == phase)
        self.phases, self.trees, self.events = self.phases[:count], self.trees[:count], self.events[:end]
        self._forget()

    def at_peak(self, batch: int) -> Record:
        """This one, or that of an earlier micro-step if its level is the highest: whose moments are to be looked at."""
        earlier = self.earlier
        if earlier is None or earlier.peak_bytes(batch) <= max(self._own_peaks(batch).values()):
            return self
        return earlier.at_peak(batch)

    def with_states(self, states: list[StandingState]) -> Record:
        """The same iteration beside other states."""
        other = object.__new__(Record)
        other.__dict__.update(self.__dict__)
        other.states = states
        other._count_states()
        other._forget()
        return other

    def _count_states(self) -> None:
        self._static_sampled = [state for state in self.states if state.per_sample_bytes]
        self._static_fixed = sum(state.at(0) for state in self.states if not state.per_sample_bytes)

    # -------------------------------------------------------------------------------------------------- numbers
    def sizes(self, batch: int) -> list[int]:
        """Rounded bytes of every storage at a micro-batch."""
        found = self._sizes.get(batch)
        if found is None:
            block = ALLOCATOR_BLOCK_BYTES
            found = [
                f if not p else f - (-p * batch // block) * block
                for f, p in zip(self.fixed, self.per_sample, strict=True)
            ]
            for index, size in self.sized.items():
                found[index] = size(batch)
            self._sizes = {batch: found}
        return found

    def largest_bytes(self, batch: int) -> int:
        """Bytes of the largest storage of the iteration at a micro-batch; 0 if there is none."""
        found = self._largest.get(batch)
        if found is None:
            found = self._largest[batch] = max(self.sizes(batch), default=0)
        return found

    def signed(self, batch: int) -> list[int]:
        """The same for `climb`."""
        found = self._signed.get(batch)
        if found is None:
            found = both_signs(self.sizes(batch))
            self._signed = {batch: found}
        return found

    def static_bytes(self, batch: int) -> int:
        """Bytes that are alive during the whole iteration."""
        return self._static_fixed + sum(state.at(batch) for state in self._static_sampled)

    def peaks(self, batch: int) -> dict[str, int]:
        """Peak bytes of each phase, in whichever micro-step it is the highest."""
        if self.earlier is None:
            return self._own_peaks(batch)
        found = self._peaks.get(batch)
        if found is None:
            others = self.earlier.peaks(batch)
            own = self._own_peaks(batch)
            found = self._peaks[batch] = {name: max(level, others.get(name, 0)) for name, level in own.items()}
        return found

    def _own_peaks(self, batch: int) -> dict[str, int]:
        found = self._own.get(batch)
        if found is None:
            signed = self.signed(batch)
            level = self.static_bytes(batch)
            found = self._own[batch] = {}
            for name, items in self.trees:
                net, top = climb(items, signed)
                found[name] = level + top
                level += net
        return found

    def peak_bytes(self, batch: int) -> int:
        """Peak bytes of the iteration."""
        found = self._tops.get(batch)
        if found is None:
            found = self._tops[batch] = max(self.peaks(batch).values())
        return found

    def left_before_bytes(self, batch: int) -> int:
        """How much less the peak of a first iteration is, which finds nothing that the one before has left."""
        if not self.carried:
            return 0
        sizes = list(self.sizes(batch))
        for one in self.carried:
            sizes[one.stand_in] = 0
        signed = both_signs(sizes)
        level = top = self.static_bytes(batch)
        for _, items in self.trees:
            net, above = climb(items, signed)
            top, level = max(top, level + above), level + net
        if self.earlier is not None:
            top = max(top, self.earlier.peak_bytes(batch) - self.earlier.left_before_bytes(batch))
        return self.peak_bytes(batch) - top

    def stranded_bytes(self, batch: int) -> int:
        """How much more than the peak the allocator needs, as some tensors cannot use what others have freed.

        Those of another stream, and those that are larger than every block before them. Each group has its own worst
        moment, and the allocator keeps the blocks of each.
        """
        return self._stranded_of(batch, short=False)

    def returnable_bytes(self, batch: int) -> int:
        """Of `stranded_bytes` what the allocator gives back to the device before an allocation fails.

        That is of blocks of the model's own stream that are too small. What streams keep is not in it: published runs
        with FSDP need it.
        Source: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks, which malloc calls when memory is short.
        """
        if not self.unjoined:
            return 0
        return self.stranded_bytes(batch) - self._stranded_of(batch, short=True)

    def _stranded_of(self, batch: int, *, short: bool) -> int:
        """`stranded_bytes`; `short`: of what streams keep alone."""
        found = self._stranded.get((batch, short))
        if found is None:
            others = self.elsewhere if short else self.elsewhere | self.without_a_block(batch)
            own = max(self._own_peaks(batch).values())
            held = own + self._stranded_beside(batch, others)
            if self.earlier is not None:
                before = self.earlier
                held = max(held, before.peak_bytes(batch) + before._stranded_of(batch, short=short))
            found = self._stranded[batch, short] = held - self.peak_bytes(batch)
        return found

    def without_a_block(self, batch: int) -> frozenset[int]:
        """The storages for which no freed block is large enough, of those that are marked as such."""
        if not self.unjoined:
            return frozenset()
        found, largest = set(), 0
        for index, size in enumerate(self.sizes(batch)):
            if index in self.unjoined:
                if size > largest:
                    found.add(index)
            elif size > largest and self.categories[index] != "in_flight":  # which stands for several tensors
                largest = size
        return frozenset(found)

    def _stranded_beside(self, batch: int, others: frozenset[int]) -> int:
        if not others:
            return 0
        own = list(self.sizes(batch))
        for index in others:
            own[index] = 0
        tops = 0
        for trees, signed in ((self.trees, both_signs(own)), (self._trees_of(others), self.signed(batch))):
            level = top = 0
            for _, items in trees:
                net, above = climb(items, signed)
                top, level = max(top, level + above), level + net
            tops += top
        return max(0, self.static_bytes(batch) + tops - max(self._own_peaks(batch).values()))

    def _trees_of(self, storages: frozenset[int]) -> list[tuple[str, list[Item]]]:
        """The trees of some storages alone; those of the last ones that were asked for are kept."""
        found = self._few.get(storages)
        if found is None:
            found = [(name, items_of(items, storages)) for name, items in self.trees]
            self._few = {storages: found}
        return found

    def saved_bytes(self, batch: int) -> int:
        """What the end of forward holds for backward: all that was born in forward and still lives."""
        sizes = self.sizes(batch)
        total = 0
        for position, storage, copies in flattened(self.trees[0][1]):
            if position >= self.saved_at:
                break
            if self.categories[storage] not in BEFORE_FORWARD:
                total += sizes[storage] * copies
        return total

    # ----------------------------------------------------------------------------------------------- the moment
    def worst(self, batch: int) -> tuple[str, Moment]:
        """The phase with the highest level, and the moment in it."""
        found = self._worst.get(batch)
        if found is None:
            peaks = self._own_peaks(batch)
            phase = max(peaks, key=lambda name: peaks[name])
            items = next(items for name, items in self.trees if name == phase)
            _, position, last = locate(items, self.signed(batch))
            found = self._worst[batch] = phase, Moment(peaks[phase], position, last)
        return found

    def device_at(self, batch: int) -> int | None:
        """The number of the device that holds most at the worst moment; None: they are all alike then."""
        _, moment = self.worst(batch)
        return next((number for at, number in reversed(self.looked_at) if at <= moment.position), None)

    def moments(self, batch: int) -> list[tuple[str, Moment]]:
        """The worst moment of each phase."""
        peaks, signed = self._own_peaks(batch), self.signed(batch)
        return [(name, Moment(peaks[name], *locate(items, signed)[1:])) for name, items in self.trees]

    def components(self, batch: int, phase: str, moment: Moment) -> dict[str, int]:
        """Bytes by component that are alive at a moment; they sum exactly to its level."""
        totals: dict[str, int] = {}
        for state in self.states:
            totals[state.category] = totals.get(state.category, 0) + state.at(batch)
        sizes = self.sizes(batch)
        for name, items in self.trees:
            if name == phase:
                tally(items, sizes, self.categories, totals, moment, 0)
                break
            for _, storage, copies in flattened(items):
                category = self.categories[storage]
                totals[category] = totals.get(category, 0) + sizes[storage] * copies
        return {name: size for name, size in totals.items() if size}

    def alive(self, phase: str, moment: Moment) -> dict[int, int]:
        """Copies of each storage that are alive at a moment.

        Identical blocks hand a tensor from one to the next. The last copy that is alive is counted with the block that
        made it, those that died with the first one, whose copies are then fewer than none: tensors of one kind sum up.
        """
        copies: dict[int, int] = {}
        each, themselves = [1] * len(self.fixed), range(len(self.fixed))
        for name, items in self.trees:
            if name == phase:
                tally(items, each, themselves, copies, moment, 0)
                break
            for _, storage, times in flattened(items):
                copies[storage] = copies.get(storage, 0) + times
        return {storage: times for storage, times in copies.items() if times}

    def kept(self) -> dict[int, int]:
        """Copies of each storage that the end of forward holds; their bytes sum to `saved_bytes`."""
        copies: dict[int, int] = {}
        for position, storage, times in flattened(self.trees[0][1]):
            if position >= self.saved_at:
                break
            copies[storage] = copies.get(storage, 0) + times
        return {storage: times for storage, times in copies.items() if times}

    def operator_at(self, moment: Moment) -> str:
        """The operator whose allocation reached the moment."""
        if moment.position < 0:
            return "start of the phase"
        index = self.events[moment.position]
        return self.operators[index if index >= 0 else ~index]

    def net_bytes(self, batch: int, phases: Sequence[str]) -> int:
        """What these phases leave alive of what they made."""
        sizes = self.sizes(batch)
        trees = (items for name, items in self.trees if name in phases)
        return sum(sizes[storage] * copies for items in trees for _, storage, copies in flattened(items))

    def end_bytes(self, batch: int) -> int:
        """Bytes alive when the iteration is over; equals the states if nothing leaked."""
        return self.static_bytes(batch) + self.net_bytes(batch, [name for name, _ in self.trees])
