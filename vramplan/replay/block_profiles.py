"""What each block of a record adds to the level, inside its unit too: segments of any blocks can be put together of it.

A checkpoint of several blocks runs forward over them, then in backward computes them again and walks them in reverse.
Each block adds to each of these passes what its place in the segment says: the first one holds the input,
the last one is where recomputation stops early, and those between differ in nothing but what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.replay.pieces import OutsideBytes, births_of, outer_events, phases_of, slices_of, without_casts
from vramplan.replay.record import Record
from vramplan.replay.recorder import Path
from vramplan.replay.tree import Item, Repeat, climb, events_of, outside_of
from vramplan.tuples import NamedTuple

Change = tuple[int, int]  # how the level changes, and its highest, both against the level before
NO_CHANGE: Change = (0, 0)
BEFORE, AGAIN, BACKWARD = 0, 1, 2  # the passes of a segment's backward
Groups = list[tuple[int, list[tuple[int, int, Path]]]]
"""Pieces of a unit in the order of time, together where they are in one of its blocks; 0 is in none."""


class BlockPart(NamedTuple):
    """What each of equal blocks adds: in forward; in backward before, in and after the segment's recomputation."""

    offset: int  # of the first of them from the unit's first block
    blocks: int
    forward: Change
    before: Change
    again: Change
    leaving: int  # of what recomputation made, what goes with its end (negative)
    backward: Change
    recomputed_flops: int


class UnitProfile(NamedTuple):
    """A unit, which is a stored block or a checkpoint: its blocks in their order, equal ones between them once.

    `released` are bytes that went in its backward, but are no part of `parts`: of tensors which it was the first in the
    order of the model to hold, and that no unit of its stack made, or that do not grow with the micro-batch.
    """

    first_block: int
    copies: int
    distance: int  # blocks from one copy to the next
    parts: list[BlockPart]
    released: int
    gradients: int  # what its backward leaves
    idle: bool  # it has no backward: nobody asks for its result


class StackGap(NamedTuple):
    """What happens between two stacks."""

    forward: Change
    backward: Change
    gradients: int


class Profiles(NamedTuple):
    """A record taken apart."""

    units: list[UnitProfile]
    gaps: dict[int, StackGap]  # by the first block after them
    outside: OutsideBytes


def profiles(record: Record, batch: int, firsts: frozenset[int]) -> Profiles:
    """Take a record apart. `firsts` are the first blocks of the stacks: what their units release is part of them."""
    return _Taken(record, batch, firsts).profiles()


class _Taken:
    def __init__(self, record: Record, batch: int, firsts: frozenset[int]) -> None:
        self.record, self.sizes, self.firsts = record, record.sizes(batch), firsts
        self.signed = record.signed(batch)
        self.births = births_of(record)
        self.times = {unit: times for _, path in record.marks for unit, times in path}
        self.inner_births = _inner_births(record)
        self.phases = {name: (start, end) for name, start, end in phases_of(record)}
        self.lasting = self._lasting()
        start, end = self.phases["forward"]
        self.of_forward = {index for index in record.events[start:end] if index >= 0}

    def profiles(self) -> Profiles:
        forward, backward = (self._by_unit(*self.phases[name]) for name in ("forward", "backward"))
        order = list(forward)
        units = [self._unit(unit, forward[unit], backward.get(unit, [])) for unit in order]
        return Profiles(units, self._gaps(), self._outside())

    # ------------------------------------------------------------------------------------------------- outside
    def _outside(self) -> OutsideBytes:
        forward, backward = (slices_of(self.record, *self.phases[name]) for name in ("forward", "backward"))
        between, _ = without_casts(self.record, outer_events(forward, last=True), self.births, self.sizes, self.times)
        before_net, before_top = climb([outer_events(forward, last=False)], self.signed)
        loss_net, loss_top = climb([outer_events(backward, last=False)], self.signed)
        after_net, after_top = climb([outer_events(backward, last=True)], self.signed)
        between_top = climb([between], self.signed)[1]
        return OutsideBytes(before_net, before_top, between_top, loss_net, loss_top, after_net, after_top)

    def _gaps(self) -> dict[int, StackGap]:
        """Between units of two stacks: by the first block after the gap."""
        found: dict[int, list[Change]] = {}
        gradients: dict[int, int] = {}
        for index, name in enumerate(("forward", "backward")):
            slices = slices_of(self.record, *self.phases[name])
            inside = [k for k, (unit, _) in enumerate(slices) if unit]
            for k in range(inside[0], inside[-1] + 1) if inside else ():
                unit, items = slices[k]
                if unit:
                    continue
                later = slices[k + 1 if index == 0 else k - 1][0]
                block = self.record.numbers[later][0]
                found.setdefault(block, [NO_CHANGE, NO_CHANGE])[index] = climb(items, self.signed)
                if index:
                    made = outside_of(items)
                    gradients[block] = sum(self.sizes[at] for _, at, sign in made if sign > 0 and at in self.lasting)
        return {block: StackGap(one, other, gradients.get(block, 0)) for block, (one, other) in found.items()}

    def stack_of(self, unit: int) -> int:
        """The stack that a unit is of, by the first block of it."""
        block = self.record.numbers[unit][0]
        return max(first for first in self.firsts if first <= block)

    def _lasting(self) -> set[int]:
        """What backward made and left."""
        start, end = self.phases["backward"]
        events = self.record.events
        return {i for i in events[start:end] if i >= 0} - {~i for i in events[start:end] if i < 0}

    # --------------------------------------------------------------------------------------------------- units
    def _by_unit(self, start: int, end: int) -> dict[int, Groups]:
        """The pieces of each unit."""
        found: dict[int, Groups] = {}
        for low, high, path in _all_pieces(self.record, start, end):
            if not path:
                continue
            groups = found.setdefault(path[0][0], [])
            inner = path[1][0] if len(path) > 1 else 0
            if not groups or groups[-1][0] != inner:
                groups.append((inner, []))
            if low < high:
                groups[-1][1].append((low, high, path))
        return found

    def _unit(
        self,
        unit: int,
        forward: Groups,
        backward: Groups,
    ) -> UnitProfile:
        first_block, distance = self.record.numbers[unit]
        taken = _Released(self, unit, keeps_all=first_block in self.firsts)
        blocks = list(dict.fromkeys(inner for inner, _ in forward if inner)) or [0]
        fore = dict.fromkeys(blocks, NO_CHANGE)
        last = blocks[0]
        for inner, pieces in forward:
            last = inner or last
            fore[last] = _then(fore[last], climb(self.record.nesting.nest(pieces, 2), self.signed))
        same = self._same(blocks, backward)
        done = self._passes(blocks, backward, same, taken)
        flops = dict.fromkeys(blocks, 0)
        for inner, block in same.items():
            flops[block] += self.record.recomputed.get((unit, inner), 0)
        parts = [self._part(inner, fore[inner], done[inner], flops[inner]) for inner in blocks]
        made = sum(self.sizes[i] for i in self.lasting if self.births[i] == unit)
        return UnitProfile(
            first_block, self.times[unit], distance, parts, taken.bytes, made, not any(pieces for _, pieces in backward)
        )

    def _same(self, blocks: list[int], groups: Groups) -> dict[int, int]:
        """Which block of forward each is: recomputation walks over them under names of its own."""
        offsets = {self._span(block)[0]: block for block in blocks}
        inners = {inner for inner, _ in groups} | {*blocks}
        return {inner: offsets[self._span(inner)[0]] for inner in inners if inner} | ({0: 0} if blocks == [0] else {})

    def _passes(
        self, blocks: list[int], groups: Groups, same: dict[int, int], taken: _Released
    ) -> dict[int, tuple[Change, Change, int, Change]]:
        """Of each block: before recomputation, in it, what leaves with its end, and its backward."""
        done = {inner: [NO_CHANGE, NO_CHANGE, NO_CHANGE] for inner in blocks}
        leaving = dict.fromkeys(blocks, 0)
        close = blocks[-1]
        stage = BACKWARD if len(blocks) == 1 else BEFORE
        last = close
        for inner, pieces in groups:
            if stage == BEFORE and inner and inner not in blocks:
                stage = AGAIN
            elif stage == AGAIN and last == close and inner in (0, *blocks):
                stage = BACKWARD
                if not inner:  # the end of recomputation: what autocast cast goes, for each block what it made
                    for _, storage, copies in _flat(self.record.nesting.nest(pieces, 1)):
                        leaving[same[self.inner_births[storage]]] -= self.sizes[storage] * (copies < 0)
                    continue
            last = same.get(inner, last)
            items = taken.of(self.record.nesting.nest(pieces, 2))
            done[last][stage] = _then(done[last][stage], climb(items, self.signed))
        return {block: (one, two, leaving[block], three) for block, (one, two, three) in done.items()}

    def _part(self, inner: int, forward: Change, backward: tuple[Change, Change, int, Change], flops: int) -> BlockPart:
        offset, times = self._span(inner)
        return BlockPart(offset, times, forward, *backward, flops)

    def _span(self, inner: int) -> tuple[int, int]:
        return (self.record.numbers[inner][0], self.times[inner]) if inner else (0, 1)


class _Released:
    """Takes the deaths of shared tensors out of a unit's backward, and counts them."""

    def __init__(self, taken: _Taken, unit: int, *, keeps_all: bool) -> None:
        self.taken, self.unit, self.keeps_all, self.bytes = taken, unit, keeps_all, 0

    def of(self, items: list[Item]) -> list[Item]:
        if self.keeps_all:
            return items
        return [
            item if isinstance(item, Repeat) else [event for event in events_of(item) if not self._shared(event)]
            for item in items
        ]

    def _shared(self, event: tuple[int, int, int]) -> bool:
        _, storage, copies = event
        taken = self.taken
        birth = taken.births[storage]
        if copies > 0 or birth == self.unit or storage not in taken.of_forward:
            return False
        grows = taken.record.per_sample[storage] or storage in taken.record.sized
        if birth and grows and taken.stack_of(birth) == taken.stack_of(self.unit):
            return False
        self.bytes += taken.sizes[storage]
        return True


def _then(one: Change, other: Change) -> Change:
    return one[0] + other[0], max(one[1], one[0] + other[1])


def _all_pieces(record: Record, start: int, end: int) -> Iterator[tuple[int, int, Path]]:
    """The events from `start` to `end`, cut where the units around them change; without events too."""
    marks = record.marks
    for k, (position, path) in enumerate(marks):
        until = marks[k + 1][0] if k + 1 < len(marks) else len(record.events)
        low, high = max(position, start), min(until, end)
        if low <= high and position < end:
            yield low, high, path


def _inner_births(record: Record) -> dict[int, int]:
    """The block of a unit in which each storage was born."""
    births = {}
    for low, high, path in record.nesting.pieces(0, len(record.events)):
        inner = path[1][0] if len(path) > 1 else 0
        for index in record.events[low:high]:
            if index >= 0:
                births[index] = inner
    return births


def _flat(items: list[Item]) -> Iterator[tuple[int, int, int]]:
    for item in items:
        if isinstance(item, Repeat):
            yield from _flat(item.items)
        else:
            yield from events_of(item)
