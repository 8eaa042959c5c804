"""The order of a model told from one with fewer blocks: equal blocks, or equal checkpoints of them, repeat themselves.

Of a row of equal units the first, one between and the last are walked. All between are as that one, with the parameters
of their own blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from vramplan.engines.deepspeed.order import Order, Place
from vramplan.replay.models.modules import Segment
from vramplan.tuples import NamedTuple

WALKED = 3  # units of a row: the first, one that stands for all between, the last

T = TypeVar("T")


class RepeatedUnit(NamedTuple):
    """A checkpoint of so many blocks, or one stored block, which stands for several in a row."""

    first: int  # block, in the walked model
    blocks: int
    times: int  # how many it stands for
    at: int  # the first block of the first of them, in the whole model


class _Irregular(Exception):
    """What is walked does not come unit by unit."""


def shortened(segments: Sequence[Segment]) -> tuple[tuple[Segment, ...], tuple[RepeatedUnit, ...]] | None:
    """The segments that are walked, and what their units stand for; None if that are all."""
    walked, units = [], []
    first = at = 0
    for segment in segments:
        # of stored blocks each is a unit
        times, blocks = (segment.times, segment.blocks) if segment.checkpointed else (segment.times * segment.blocks, 1)
        count = min(times, WALKED)
        walked.append(
            segment._replace(times=count) if segment.checkpointed else segment._replace(times=1, blocks=count)
        )
        for number in range(count):
            one = times - count + 1 if number == 1 and count == WALKED else 1
            units.append(RepeatedUnit(first, blocks, one, at))
            first, at = first + blocks, at + one * blocks
    return None if first == at else (tuple(walked), tuple(units))


@lru_cache(maxsize=16)
def repeated(order: Order, units: tuple[RepeatedUnit, ...]) -> Order | None:
    """The order of the whole model; None if it cannot be told, as something comes between the blocks of a unit."""
    if order.kept_bytes:  # which are of all blocks together
        return None
    try:
        return _Repetition(order, units).order()
    except _Irregular:
        return None


class _Repetition:
    def __init__(self, order: Order, units: Sequence[RepeatedUnit]) -> None:
        self.short, self.units = order, units
        of_block = [number for number, unit in enumerate(units) for _ in range(unit.blocks)]
        self.unit = [None if place is None else of_block[place[1]] for place in order.places]
        self.runs = runs_of(range(len(order.sizes)), self.unit.__getitem__)
        self._once([unit for unit, _ in self.runs])
        self.length = {unit: len(members) for unit, members in self.runs}  # of what is in no unit there is one
        self.begins: list[int] = []  # the new number of each parameter, of the first unit that its own stands for
        start = 0
        for unit, members in self.runs:
            self.begins += range(start, start + len(members))
            start += self._times(unit) * len(members)

    def order(self) -> Order:
        short = self.short
        return short._replace(
            sizes=self._each(short.sizes),
            places=tuple(self._place(one, time) for one, time in self._all()),
            arrivals=self._numbers(short.arrivals, falling=True),
            uses=self._uses(),
            made=self._numbers(short.made),
            asked=self._of(short.asked, 0),
            trained=self._each(short.trained),
            leaves=tuple(
                self._of(module, time)
                for unit, modules in runs_of(short.leaves, self._unit_of)
                for time in range(self._times(unit))
                for module in modules
            ),
        )

    def _all(self) -> list[tuple[int, int]]:
        """Each parameter of the whole model: the one that stands for it, and the how manieth of these it is."""
        return [(one, time) for unit, members in self.runs for time in range(self._times(unit)) for one in members]

    def _each(self, values: Sequence[T]) -> tuple[T, ...]:
        return tuple(values[one] for one, _ in self._all())

    def _place(self, one: int, time: int) -> Place | None:
        place, number = self.short.places[one], self.unit[one]
        if place is None or number is None:
            return None
        unit = self.units[number]
        return place[0], unit.at + time * unit.blocks + place[1] - unit.first

    def _numbers(self, numbers: Sequence[int], *, falling: bool = False) -> tuple[int, ...]:
        runs = runs_of(numbers, self.unit.__getitem__)
        self._once([unit for unit, _ in runs])
        found: list[int] = []
        for unit, members in runs:
            times = range(self._times(unit))
            for time in reversed(times) if falling else times:
                found += self._of(members, time)
        return tuple(found)

    def _uses(self) -> tuple[tuple[int, ...], ...]:
        """Forward comes to each unit once, and so does backward, the other way round."""
        found: list[tuple[int, ...]] = []
        runs = runs_of(self.short.uses, self._unit_of)
        met: set[int] = set()
        self._once([unit for unit, _ in runs], 2)
        for unit, modules in runs:
            times = range(self._times(unit))
            for time in reversed(times) if unit in met else times:
                found += [self._of(module, time) for module in modules]
            if unit is not None:
                met.add(unit)
        if len(runs) and len(met) * 2 != sum(unit is not None for unit, _ in runs):
            raise _Irregular
        return tuple(found)

    def _of(self, members: Sequence[int], time: int) -> tuple[int, ...]:
        return tuple(
            self.begins[one] + time * self.length[self.unit[one]] * (self.unit[one] is not None) for one in members
        )

    def _times(self, unit: int | None) -> int:
        return 1 if unit is None else self.units[unit].times

    def _unit_of(self, module: Sequence[int]) -> int | None:
        units = {self.unit[one] for one in module}
        if len(units) != 1:
            raise _Irregular
        return units.pop()

    def _once(self, units: Sequence[int | None], times: int = 1) -> None:
        known = [unit for unit in units if unit is not None]
        if len(known) != times * len(set(known)):
            raise _Irregular


def runs_of(items: Sequence[T], unit_of: Callable[[T], int | None]) -> list[tuple[int | None, list[T]]]:
    """Neighbours of one unit together."""
    runs: list[tuple[int | None, list[T]]] = []
    for item in items:
        unit = unit_of(item)
        if not runs or runs[-1][0] != unit:
            runs.append((unit, []))
        runs[-1][1].append(item)
    return runs
