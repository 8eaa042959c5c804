"""One copy among those that a replayed block stands for: what becomes of it, and whether it is alive at a moment.

A block hands tensors to its neighbour: the hidden state forwards, its gradient backwards. The replay has one storage
for all inner blocks, and it dies where the last of them hands it out of the run; what happens to the others is what
happens, inside the run, to the storage that came in from the block before: their twin.
"""

from __future__ import annotations

from vramplan.replay.notes import Birth
from vramplan.replay.record import Record
from vramplan.replay.recorder import Path
from vramplan.replay.traced import TracedTape
from vramplan.replay.tree import Moment
from vramplan.results.explain import Blocks
from vramplan.tuples import NamedTuple


class Fate(NamedTuple):
    """What becomes of one copy: the storage that tells it, and the block in which that happens."""

    birth: Birth
    block: int | None


class Copies:
    """The copies of one traced replay."""

    def __init__(self, tape: TracedTape, record: Record) -> None:
        self.tape, self.record = tape, record
        backward = next(start for start, name in record.phases if name == "backward")
        paths = [path for start, path in record.marks if start < backward]
        self.forward_units = max((unit for path in paths for unit, _ in path), default=0)
        self.kin: dict[tuple[str, str], list[Birth]] = {}
        for birth in tape.births:
            self.kin.setdefault((birth.label, birth.step.direction), []).append(birth)

    def fate(self, birth: Birth, block: int | None) -> Fate:
        """What becomes of the copy in a block."""
        if birth.blocks is None or block is None:
            return Fate(birth, block)
        neighbour = self._next(birth, block)
        if neighbour == block:
            return Fate(birth, block)
        for one in self.kin[birth.label, birth.step.direction]:
            where = self.tape.blocks(one.died_path)
            if where is not None and neighbour in where.numbers() and one.blocks != where:
                return Fate(one, neighbour)
        return Fate(birth, block)

    def neighbour(self, birth: Birth, block: int) -> int:
        """The block in which the copy of a block ends, if that is one of the same row of blocks alike; else its own."""
        there = self._next(birth, block)
        return there if birth.blocks is not None and there in birth.blocks.numbers() else block

    def _next(self, birth: Birth, block: int) -> int:
        """The block in which the copy of a block ends: its own, or the one that comes after it."""
        died = self.tape.blocks(birth.died_path)
        outwards = birth.path[: len(birth.died_path)] == birth.died_path
        if died is None or died == birth.blocks or outwards:
            return block
        return block + (-1 if birth.step.direction == "backward" else 1)

    def is_alive(self, birth: Birth, block: int | None, phase: str, moment: Moment) -> bool:
        """Whether the copy in a block is alive at a moment."""
        if moment.position < 0 or not self._before(birth.born_at, birth.path, birth.step.phase, block, phase, moment):
            return False
        told, where = self.fate(birth, block)
        return not self._before(told.died_at, told.died_path, told.died_phase, where, phase, moment)

    def _before(self, position: int, path: Path, of: str, block: int | None, phase: str, moment: Moment) -> bool:
        """Whether an event of the copy in a block has happened when the moment comes."""
        if of == phase and block is not None:
            there = self.record.nesting.pieces(moment.position, moment.position + 1)[0][2]
            last = iter(moment.last_copies)
            rest = block - sum(self.record.numbers[unit][0] for unit, _ in path)
            for (unit, times), (other, _) in zip(path, there, strict=False):
                if unit != other:
                    break
                if times == 1:
                    continue
                copy = min(rest // self.record.numbers[unit][1], times - 1)
                rest -= copy * self.record.numbers[unit][1]
                if phase == "backward" and unit <= self.forward_units:
                    copy = times - 1 - copy
                now = times - 1 if next(last) else 0
                if copy != now:
                    return copy < now
        return position <= moment.position


def neighbour_of(blocks: Blocks | None, of: Blocks | None, block: int) -> int:
    """The block of a tensor that an operator of a block takes: its own, or the one before."""
    return block if blocks is None or of is None or blocks == of else block - 1
