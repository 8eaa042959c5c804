"""Where the blocks of a model stand in the order of its parameters, and where an iteration comes to them.

Where several blocks are one checkpoint, which runs again as a whole, they are one here too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate, pairwise

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.repeats import runs_of
from vramplan.replay.models.modules import Segment
from vramplan.tuples import NamedTuple


class ContiguousBlocks(NamedTuple):
    """The blocks of a stack, or its checkpoints of several, each with its parameters one behind the other."""

    stack: int
    firsts: tuple[int, ...]  # the first block of each, and how many there are
    starts: tuple[int, ...]  # the number of the first parameter of each, and the one behind the last
    number: int
    forward: tuple[int, ...]  # the step at which forward comes to each block, and that at which it is past the last
    backward: tuple[int, ...]  # the same of backward: past the first block, and at which it comes to each block
    kinds: tuple[Hashable, ...]  # of each block: equal ones have equal parameters, which are come to alike

    def of(self, number: int) -> int | None:
        """The block of a parameter; None: it is in none."""
        return bisect_right(self.starts, number) - 1 if self.starts[0] <= number < self.starts[-1] else None

    def start(self, block: int) -> int:
        """The number of the first parameter of a block, or of one before the first that is as long."""
        starts = self.starts
        return starts[block] if block >= 0 else 2 * starts[0] - starts[1]

    def at(self, block: int) -> int:
        """Which one a block of the model is, or is in."""
        return bisect_right(self.firsts, block) - 1

    def step(self, block: int, *, turned: bool) -> int:
        """The step at which the iteration comes to a block: in forward, or in backward. That may be past all blocks."""
        return self.backward[block + 1] if turned else self.forward[block]


def blocks_of(order: Order, segments: Sequence[Segment], stack: int) -> ContiguousBlocks | None:
    """The blocks of a stack; None where something comes between their parameters, or between them."""
    numbers: dict[int, list[int]] = {}
    for number, place in enumerate(order.places):
        if place is not None and place[0] == stack:
            numbers.setdefault(place[1], []).append(number)
    each = [*numbers.values()]
    if not each or [*numbers] != [*range(len(each))]:
        return None
    if [one for members in each for one in members] != [*range(each[0][0], each[-1][-1] + 1)]:
        return None
    firsts = _firsts(segments)
    if firsts[-1] != len(each):
        return None
    count = len(firsts) - 1
    starts = (*(numbers[first][0] for first in firsts[:-1]), each[-1][-1] + 1)
    blocks = ContiguousBlocks(stack, firsts, starts, count, (), (), ())
    steps = _steps(order, blocks)
    made, arrivals = (_runs_of(numbers, blocks) for numbers in (order.made, order.arrivals))
    if steps is None or made is None or arrivals is None:
        return None
    if [block for block, _ in made] != [*range(count)] or not _falls(arrivals):
        return None
    came = dict(arrivals)
    kinds = tuple(
        (
            order.sizes[blocks.start(block) : blocks.start(block + 1)],
            order.trained[blocks.start(block) : blocks.start(block + 1)],
            order.eight_bits[blocks.start(block) : blocks.start(block + 1)],
            made[block][1],
            came.get(block),
            *(_uses(order, blocks, block, low, high) for low, high in _spans(steps, block)),
        )
        for block in range(count)
    )
    return blocks._replace(forward=steps[0], backward=steps[1], kinds=kinds)


def _firsts(segments: Sequence[Segment]) -> tuple[int, ...]:
    sizes = [
        size
        for times, blocks, checkpointed, _ in segments
        for size in ([blocks] * times if checkpointed else [1] * (times * blocks))
    ]
    return (0, *accumulate(sizes))


def _steps(order: Order, blocks: ContiguousBlocks) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """When forward comes to each block, and backward, which does so the other way round, if at all."""
    places = []
    for module in order.uses:
        found = {blocks.of(one) for one in module}
        if len(found) != 1:
            return None
        places.append(found.pop())
    inside = [(block, steps) for block, steps in runs_of(range(len(places)), places.__getitem__) if block is not None]
    up, down = inside[: blocks.number], inside[blocks.number :]
    if [block for block, _ in up] != [*range(blocks.number)] or not down or not _falls(down):
        return None
    if any(low[-1] + 1 != high[0] for part in (up, down) for (_, low), (_, high) in pairwise(part)):
        return None
    past = down[-1][1][-1] + 1
    begins = {block: steps[0] for block, steps in down}
    return (
        (*(steps[0] for _, steps in up), up[-1][1][-1] + 1),
        (past, *(begins.get(block, past) for block in range(blocks.number))),
    )


def _falls(runs: Sequence[tuple[int | None, Sequence[int]]]) -> bool:
    """Whether these are blocks one below the other, from the last one on."""
    found = [block for block, _ in runs]
    return all(low is not None and high is not None and low == high - 1 for high, low in pairwise(found))


def _runs_of(numbers: Sequence[int], blocks: ContiguousBlocks) -> list[tuple[int, tuple[int, ...]]] | None:
    """The parameters of each block that come one behind the other, as they are called in a block."""
    runs = [(block, members) for block, members in runs_of(numbers, blocks.of) if block is not None]
    found = [(block, tuple([one - blocks.start(block) for one in members])) for block, members in runs]
    return found if len({block for block, _ in found}) == len(found) else None


def _spans(steps: tuple[tuple[int, ...], tuple[int, ...]], block: int) -> tuple[tuple[int, int], tuple[int, int]]:
    forward, backward = steps
    return (forward[block], forward[block + 1]), (backward[block + 1], backward[block])


def _uses(order: Order, blocks: ContiguousBlocks, block: int, low: int, high: int) -> Hashable:
    start = blocks.start(block)
    return tuple(tuple([one - start for one in module]) for module in order.uses[low:high])
