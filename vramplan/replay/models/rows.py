"""Items in a row, blocks or checkpoints of several, of which those that repeat are played once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from vramplan.replay.observers import Sharding, Trained
from vramplan.replay.recorder import Tape

Sign = Callable[[int], object]


class StackRow:
    """The blocks of a stack, in the items that a walk plays.

    `firsts` are blocks whose items hold what no others do. Items whose blocks have another `kind` or `make_up` than
    those of the item before are played apart. Where they come in turns, as three blocks with a window and one without,
    the period is a unit that repeats, and its items are units inside of it.
    """

    def __init__(self, tape: Tape, firsts: Sequence[int], kind: Sign | None, make_up: Sign | None) -> None:
        self.tape, self.firsts, self.kind, self.make_up = tape, firsts, kind, make_up
        self.turn = tape.role(Sharding).turn

    def items(
        self,
        at: int,
        count: int,
        size: int = 1,
        *,
        start: int = 0,
        opens: bool = True,
        closes: bool = True,
        every: bool = False,
        alone: Sequence[int] = (),
    ) -> Iterator[int]:
        """The numbers of the items to play, of `count` items of `size` blocks from block `at` on.

        Names count blocks from `start` on. `opens` and `closes` say whether the first and the last item meet the
        outside. With `every` all items are played, and those that are `alone` by themselves.
        """
        tape = self.tape
        if tape.unrolled or every:
            for index, _ in tape.repeat(count, start=start, stride=size, apart=range(count)):
                yield index
            return
        own = {(one - at) // size for one in self.firsts if 0 <= one - at < count * size}
        own.update(alone)
        turns, period = self._turns(at, count, size)
        apart = sorted(own | turns)

        def played(begin: int, end: int, first: bool, last: bool, named: int) -> Iterator[int]:
            inside = [one - begin for one in apart if begin <= one < end]
            for index, _ in tape.repeat(end - begin, first=first, last=last, start=named, stride=size, apart=inside):
                yield begin + index

        done = 0
        if period and tape.periodic:
            for begin, periods in stretches(count, period, own):
                yield from played(done, begin, opens, True, start + done * size)
                named = start + begin * size
                for _ in tape.repeat(periods, first=False, last=False, start=named, stride=period * size):
                    yield from played(begin, begin + period, True, True, 0)
                done, opens = begin + periods * period, True
        if done < count:
            yield from played(done, count, opens, closes, start + done * size)

    def _turns(self, at: int, count: int, size: int) -> tuple[set[int], int]:
        """The items that are unlike the one before, and after how many items the same come again; 0: never."""
        signs = [self._signs(at + i * size, size) for i in range(count)]
        changes = {i for i in range(1, count) if signs[i] != signs[i - 1]}
        if not changes:
            return changes, 0
        period = next((p for p in range(2, count // 2 + 1) if signs[p:] == signs[:-p]), 0)
        roles = self.tape.roles
        # A block's gradients are reduced in buffers that the one below it frees. One whose neighbour trains something
        # else hands it what that needs.
        if Sharding in roles or Trained in roles:
            made = [[one for _, one in sign] for sign in signs]
            changes |= {i - 1 for i in range(1, count) if made[i] != made[i - 1]}
        return changes, period

    def _signs(self, first: int, size: int) -> list[tuple[object, object]]:
        """What the blocks of an item are."""
        kind, make_up = self.kind or _same, self.make_up or _same
        return [((kind(i), self.turn(i)), make_up(i)) for i in range(first, first + size)]


def stretches(count: int, period: int, alone: Iterable[int]) -> list[tuple[int, int]]:
    """Where periods follow each other and none of their items is alone: (first item, periods), two at least.

    The first and the last item of all are alone too.
    """
    marks = sorted({0, count - 1, *alone})
    found = [(low + 1, (high - low - 1) // period) for low, high in pairwise(marks)]
    return [(first, periods) for first, periods in found if periods > 1]


def _same(_: int) -> None:
    """What blocks are that are all alike."""
