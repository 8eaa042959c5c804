"""The events of an iteration as a tree: a repeated unit is played once and counts for `copies` identical ones.

Its levels are linear in the copy index, so the first and the last copy bound all in between. A death outside the unit
that saw the birth counts for as many copies as are alive there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import TypeVar

from vramplan.replay.ledger import Path
from vramplan.tuples import NamedTuple


class Moment(NamedTuple):
    """The worst moment of a phase."""

    bytes: int
    position: int  # event that reached it
    last_copies: tuple[bool, ...]  # for each repeated unit around it: the last copy instead of the first


class Repeat(NamedTuple):
    """A unit that counts `copies` times."""

    copies: int
    items: list[Item]


class EventRun(NamedTuple):
    """Events that follow each other, each of one copy: a storage that is born, ~storage that is freed."""

    start: int  # the position of the first
    events: list[int]


Key = TypeVar("Key")
Events = list[tuple[int, int, int]]  # (position, storage, signed copies)
Item = EventRun | Events | Repeat


def _position(mark: tuple[int, Path]) -> int:
    return mark[0]


class Nesting:
    """The events of an iteration as a tree, made of the marks of its repeated units."""

    def __init__(self, events: list[int], marks: list[tuple[int, Path]], handed_on: Collection[int] = ()) -> None:
        self.events, self.marks = events, marks
        self._weights = copies_of_deaths(events, marks, handed_on)
        self._weighted = list(self._weights)  # in the order of events

    def trees(self, phases: Sequence[tuple[int, str]]) -> list[tuple[str, list[Item]]]:
        """The tree of each phase; a phase begins at an event and has a name."""
        ends = [position for position, _ in phases[1:]] + [len(self.events)]
        return [(name, self.nest(self.pieces(start, end), 0)) for (start, name), end in zip(phases, ends, strict=True)]

    def pieces(self, start: int, end: int) -> list[tuple[int, int, Path]]:
        """The events from `start` to `end`, cut where the repeated units around them change."""
        marks = self.marks
        found = []
        for k in range(max(0, bisect_right(marks, start, key=_position) - 1), len(marks)):
            position, path = marks[k]
            if position >= end:
                break
            until = marks[k + 1][0] if k + 1 < len(marks) else len(self.events)
            low, high = max(position, start), min(until, end)
            if low < high:
                found.append((low, high, path))
        return found

    def nest(self, pieces: list[tuple[int, int, Path]], depth: int) -> list[Item]:
        """A tree of such pieces."""
        items: list[Item] = []
        k = 0
        while k < len(pieces):
            low, high, path = pieces[k]
            if len(path) <= depth or (path[depth][1] == 1 and len(path) == depth + 1):
                self._runs(low, high, items)
                k += 1
                continue
            unit = path[depth]
            j = k
            while j < len(pieces) and len(pieces[j][2]) > depth and pieces[j][2][depth] == unit:
                j += 1
            inner = self.nest(pieces[k:j], depth + 1)
            if unit[1] == 1:
                items.extend(inner)
            else:
                items.append(Repeat(unit[1], inner))
            k = j
        return items

    def _runs(self, low: int, high: int, items: list[Item]) -> None:
        """Add these events to what comes before them."""
        events, weights = self.events, self._weights
        for position in self._weighted[bisect_left(self._weighted, low) : bisect_left(self._weighted, high)]:
            if low < position:
                items.append(EventRun(low, events[low:position]))
            items.append([(position, ~events[position], -weights[position])])
            low = position + 1
        if low == high:
            return
        last = items[-1] if items else None
        if isinstance(last, EventRun) and last.start + len(last.events) == low:
            last.events.extend(events[low:high])
        else:
            items.append(EventRun(low, events[low:high]))


def both_signs(sizes: list[int]) -> list[int]:
    """Sizes with their negatives behind them, so that `~storage` is what its death changes."""
    return sizes + [-size for size in reversed(sizes)]


def copies_of_deaths(
    events: list[int], marks: list[tuple[int, Path]], handed_on: Collection[int] = ()
) -> dict[int, int]:
    """For deaths that count more than once: how many copies of the dying storage are alive there.

    Of storages that are `handed_on` it is one, wherever it dies.
    """
    born: dict[int, Path] = {}
    weights: dict[int, int] = {}
    memo: dict[tuple[Path, Path], int] = {}
    ends = [position for position, _ in marks[1:]] + [len(events)]
    for (start, path), end in zip(marks, ends, strict=True):
        inside = events[start:end]
        born.update(dict.fromkeys([index for index in inside if index >= 0], path))
        elsewhere = [
            (position, birth)
            for position, index in enumerate(inside, start)
            if index < 0 and (birth := born[~index]) is not path and ~index not in handed_on
        ]
        for position, birth in elsewhere:
            key = (birth, path)
            copies = memo.get(key)
            if copies is None:
                copies = memo[key] = _copies_alive(birth, path)
            if copies != 1:
                weights[position] = copies
    return weights


def _copies_alive(birth: Path, death: Path) -> int:
    """Copies of a storage born in the unit `birth` that die by one death in `death`.

    Inside the same unit each copy kills its own. In a neighbour at the same depth it is the tensor handed over from the
    unit next to it, of which one is alive. Outside, all copies die. Units inside of neighbours are a
    recomputation's and those that it is for, as deep as each other: each copy has its own, or that of the one before.
    """
    copies = 1
    same = True
    for depth, (unit, count) in enumerate(birth):
        if same and depth < len(death):
            if death[depth][0] != unit:
                same = False
            continue
        if depth < len(death):
            continue
        copies *= count
    return copies


def climb(items: Sequence[Item], signed: list[int]) -> tuple[int, int]:
    """(change of the level, highest level), both against the level before; sizes are those of `both_signs`."""
    level, top = 0, 0
    size_of = signed.__getitem__
    for item in items:
        if isinstance(item, EventRun):
            levels = list(accumulate(map(size_of, item.events), initial=level))
            top = max(top, max(levels))
            level = levels[-1]
        elif isinstance(item, Repeat):
            net, high = climb(item.items, signed)
            first, last = level + high, level + (item.copies - 1) * net + high
            top = max(top, first, last)
            level += item.copies * net
        else:
            for _, storage, copies in item:
                level += signed[storage] * copies
                if level > top:
                    top = level
    return level, top


def items_of(items: Sequence[Item], storages: Collection[int]) -> list[Item]:
    """What these storages have of a tree."""
    found: list[Item] = []
    for item in items:
        few: Item
        if isinstance(item, EventRun):
            few = EventRun(item.start, [one for one in item.events if (one if one >= 0 else ~one) in storages])
            is_empty = not few.events
        elif isinstance(item, Repeat):
            few = Repeat(item.copies, items_of(item.items, storages))
            is_empty = not few.items
        else:
            few = [event for event in item if event[1] in storages]
            is_empty = not few
        if not is_empty:
            found.append(few)
    return found


def events_in(items: Sequence[Item]) -> int:
    """Events where each copy of a unit has its own."""
    found = 0
    for item in items:
        if isinstance(item, EventRun):
            found += len(item.events)
        elif isinstance(item, Repeat):
            found += item.copies * events_in(item.items)
        else:
            found += sum(abs(copies) for _, _, copies in item)
    return found


def locate(items: list[Item], signed: list[int]) -> tuple[int, int, tuple[bool, ...]]:
    """(highest level, event that reached it, for each repeated unit around it: last copy?)."""
    level = 0
    best: tuple[int, int, tuple[bool, ...]] = (0, -1, ())
    for item in items:
        if isinstance(item, Repeat):
            net, _ = climb(item.items, signed)
            high, position, inner = locate(item.items, signed)
            for last in (False, True):
                reached = level + high + (item.copies - 1) * net * last
                if reached > best[0]:
                    best = (reached, position, (last, *inner))
            level += item.copies * net
        else:
            for position, storage, copies in events_of(item):
                level += signed[storage] * copies
                if level > best[0]:
                    best = (level, position, ())
    return best


def events_of(item: EventRun | Events) -> Events:
    """Each event by itself."""
    if isinstance(item, list):
        return item
    return [
        (position, index, 1) if index >= 0 else (position, ~index, -1)
        for position, index in enumerate(item.events, item.start)
    ]


def outside_of(items: Sequence[Item]) -> Events:
    """The events that are in no repeated unit."""
    return [event for item in items if not isinstance(item, Repeat) for event in events_of(item)]


def flattened(items: list[Item], times: int = 1) -> Events:
    """Each event once, with the copies that it counts for."""
    run: Events = []
    for item in items:
        if isinstance(item, Repeat):
            run += [
                (position, storage, copies * times) for position, storage, copies in flattened(item.items, item.copies)
            ]
        else:
            run += [(position, storage, copies * times) for position, storage, copies in events_of(item)]
    return run


def tally(
    items: list[Item], sizes: list[int], keys: Sequence[Key], totals: dict[Key, int], moment: Moment, depth: int
) -> bool:
    """Add what is alive at the moment, by the key of each storage; true once it is reached."""
    for item in items:
        if isinstance(item, Repeat):
            flat = flattened(item.items)
            inside = any(position == moment.position for position, _, _ in flat)
            before = item.copies if not inside else (item.copies - 1 if moment.last_copies[depth] else 0)
            for _, storage, copies in flat:
                totals[keys[storage]] = totals.get(keys[storage], 0) + sizes[storage] * copies * before
            if inside:
                return tally(item.items, sizes, keys, totals, moment, depth + 1)
        else:
            for position, storage, copies in events_of(item):
                if moment.position < 0:
                    return True
                totals[keys[storage]] = totals.get(keys[storage], 0) + sizes[storage] * copies
                if position == moment.position:
                    return True
    return moment.position < 0
