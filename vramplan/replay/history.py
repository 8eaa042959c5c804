"""The whole step, one sample after the other: the record with its repeated units played copy by copy.

A record holds one slice for all copies of an identical block. Its levels are linear in the number of the copy, so
playing the slice as often as it counts gives every level in between, and the blocks their numbers.
"""

from __future__ import annotations

from vramplan.replay.record import Record
from vramplan.replay.recorder import Path
from vramplan.replay.tree import Events, Item, Repeat, events_of
from vramplan.results.timeline import END, START, History, Part, Phase, Sample

# From what lives for the whole run to what lives inside one kernel: the order in which a picture is stacked.
LONG_TO_SHORT = (
    "weights",
    "master",
    "optimizer",
    "ema",
    "reference",
    "buffers",
    "inputs",
    "gradients",
    "in_flight",
    "communication",
    "weight_casts",
    "gathered",
    "activations",
    "temporaries",
    "workspace",
)


def history(record: Record, batch: int) -> History:
    """Every level of an iteration at a micro-batch that the record is valid for, by component.

    Allocations that follow each other in one block and come from one operator are one sample; deaths between them
    belong to it. Every phase begins with a sample of the level that it starts from; the last sample is the level that
    is left. The highest samples of the phases are `Record.peaks`, the components of the highest one are
    `Record.components` at the worst moment.
    """
    return _Player(record, batch).play()


class _Player:
    """The level and its components while the events go by."""

    def __init__(self, record: Record, batch: int) -> None:
        self.record = record
        self.sizes = record.sizes(batch)
        known = {*record.categories, *(state.category for state in record.states)}
        self.names = [name for name in LONG_TO_SHORT if name in known]
        self.names += sorted(known.difference(self.names))
        place = {name: number for number, name in enumerate(self.names)}
        self.places = [place[category] for category in record.categories]
        self.now = [0] * len(self.names)
        for state in record.states:
            self.now[place[state.category]] += state.at(batch)
        self.most = list(self.now)
        self.level = sum(self.now)
        self.samples: list[Sample] = []
        self.phase = ""
        self.block: int | None = None
        self.operator = ""
        self.top = self.level
        self.at_top = tuple(self.now)
        self.paths = _paths(record)
        self.reversed_units = 0  # units up to this one run from their last copy to their first

    def play(self) -> History:
        record = self.record
        phases = []
        units = 0
        for (name, items), (begin, _) in zip(record.trees, record.phases, strict=True):
            first, start = len(self.samples), self.level
            # backward walks the units of forward from the end; those of a recomputation are its own, and run ahead
            self.reversed_units = units if name == "backward" else 0
            self._open(name, None, START)
            self._items(items, ())
            self._close()
            until = next((position for position, _ in record.phases if position > begin), len(record.events))
            units = max((unit for path in self.paths[begin:until] for unit, _ in path), default=units)
            peak = max(sample.allocated_bytes for sample in self.samples[first:])
            phases.append(Phase(name, first, len(self.samples) - first, start, peak, self.level))
        self._open(phases[-1].name, None, END)
        self._close()
        phases[-1] = phases[-1]._replace(samples=phases[-1].samples + 1)
        return self._whole(tuple(phases))

    def _whole(self, phases: tuple[Phase, ...]) -> History:
        levels = [sample.allocated_bytes for sample in self.samples]
        peak = levels.index(max(levels))
        kept = [number for number, most in enumerate(self.most) if most]
        at_peak = self.samples[peak].components
        return History(
            components=tuple(Part(self.names[n], at_peak[n], self.most[n]) for n in kept),
            samples=tuple(s._replace(components=tuple([s.components[n] for n in kept])) for s in self.samples),
            phases=phases,
            peak_sample=peak,
        )

    def _open(self, phase: str, block: int | None, operator: str) -> None:
        self.phase, self.block, self.operator = phase, block, operator
        self.top, self.at_top = self.level, tuple(self.now)

    def _close(self) -> None:
        self.samples.append(Sample(self.phase, self.block, self.operator, self.top, self.at_top))

    def _items(self, items: list[Item], copies: tuple[int, ...]) -> None:
        """Play items inside these copies of the repeated units around them."""
        for item in items:
            if isinstance(item, Repeat):
                for copy in range(item.copies):
                    self._items(item.items, (*copies, copy))
            else:
                self._run(events_of(item), copies)

    def _run(self, run: Events, copies: tuple[int, ...]) -> None:
        sizes, places, now, most, operators = self.sizes, self.places, self.now, self.most, self.record.operators
        relabelled, paths = self.record.relabelled, self.paths
        path: Path | None = None
        block: int | None = None
        for position, storage, times in run:
            place, size = places[storage], sizes[storage] * times
            if times < 0 or storage in relabelled:
                self.level += size
                now[place] += size
            else:
                if paths[position] is not path:
                    path = paths[position]
                    block = self._number(path, copies)
                operator = operators[storage]
                if operator != self.operator or block != self.block:
                    self._close()
                    self._open(self.phase, block, operator)
                    self.top = -1  # its own allocation is its first level
                self.level += size
                now[place] += size
                if self.level > self.top:
                    self.top, self.at_top = self.level, tuple(now)
            if now[place] > most[place]:
                most[place] = now[place]

    def _number(self, path: Path, copies: tuple[int, ...]) -> int | None:
        """The block that an event belongs to; None if it is in none, or between the blocks of a checkpoint."""
        if not path or self.record.numbers[path[-1][0]][1] != 1:
            return None
        number = 0
        playing = iter(copies)
        for unit, times in path:
            first, distance = self.record.numbers[unit]
            copy = next(playing) if times > 1 else 0
            if unit <= self.reversed_units:
                copy = times - 1 - copy
            number += first + copy * distance
        return number


def _paths(record: Record) -> list[Path]:
    """The repeated units around every event."""
    ends = [position for position, _ in record.marks[1:]] + [len(record.events)]
    paths: list[Path] = []
    for (start, path), end in zip(record.marks, ends, strict=True):
        paths += [path] * (end - start)
    return paths
