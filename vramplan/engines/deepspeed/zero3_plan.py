"""Which blocks are alike under stage 3 of ZeRO, told by a walk over the modules without a tensor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero3 import Zero3
from vramplan.engines.deepspeed.zero3_blocks import ContiguousBlocks, blocks_of
from vramplan.engines.deepspeed.zero3_gathered import Handle, NoTape
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.engines.deepspeed.zero3_turning import Boundary, Stands, TurningPlan, Turns
from vramplan.replay.models.modules import Segment
from vramplan.tuples import NamedTuple

MOST_PERIOD = 8  # blocks after which the same comes again


@lru_cache(maxsize=64)
def plan_of(
    order: Order, policy: Zero3Policy, stacks: tuple[tuple[Segment, ...], ...], loss: str, *, compiled: bool
) -> TurningPlan:
    """Which blocks of the deepest stack are alike, by a walk over the modules.

    `stacks`: what is stored of each and what is checkpointed. `loss`: one that uses the head in parts has a plan apart.
    In a `compiled` iteration tensors are made late, so that none can stand for others.
    """
    deepest = max(range(len(stacks)), key=lambda stack: sum(one.times * one.blocks for one in stacks[stack]))
    blocks = blocks_of(order, stacks[deepest], deepest)
    queued = (0, *accumulate(map(len, order.uses)))
    if blocks is None or blocks.number < 2 * 2:
        return TurningPlan(None, queued, None)
    # a checkpoint of what is not trained lets go of it later than the walk, which knows nothing of recomputation
    is_exact = all(order.trained) or not any(one.checkpointed for one in stacks[deepest])
    is_loose = policy.shards > 1 and is_exact and not compiled
    walk = _Walk(policy, order, blocks, queued, is_loose=is_loose)
    met, count = walk.walked(), blocks.number
    if is_loose:
        return TurningPlan(blocks, queued, _turns(met, count, 1, count - 1), walk.stands())
    return TurningPlan(blocks, queued, _turns(met, count, 2 + walk.distances[1], count - 1 - walk.distances[0]))


class Met(NamedTuple):
    """What there is when a block begins, and what is gathered and let go in it, in forward and in backward."""

    before: list[Any]
    inside: list[Any]
    back_before: list[Any]
    back_inside: list[Any]


def _turns(met: Met, count: int, lowest: int, highest: int) -> Turns | None:
    """The period that spares most blocks, of those from `lowest` to before `highest`, and of these the shortest."""
    best, most = None, 0
    for period in range(1, min(MOST_PERIOD, count // 2) + 1):
        rows, spared, first = [], 0, lowest
        for block in range(lowest, count):
            if block + period < highest and _alike(met, block, block + period):
                continue
            end = block - 1 + period
            if end - first >= 2 * period:
                rows.append((first, end))
                spared += (end - first) // period * period - period
            first = block + 1
        if spared > most:
            best, most = Turns(tuple(rows), period), spared
    return best


def _alike(met: Met, one: int, other: int) -> bool:
    return all(values[one] == values[other] for values in met)


class _Gradient:
    """One that is there."""

    def __init__(self, number: int, elements: int) -> None:
        self.number, self.elements, self.grad = number, elements, None


class _Walk(Zero3):
    """A walk over the modules of an iteration that notes what happens in each block.

    `is_loose`: of what comes and goes it notes no more than how large it is.
    """

    def __init__(
        self,
        policy: Zero3Policy,
        order: Order,
        blocks: ContiguousBlocks,
        queued: tuple[int, ...],
        *,
        is_loose: bool,
    ) -> None:
        nothing: Any = NoTape()
        super().__init__(nothing, policy, order)
        self.blocks, self.queued, self.is_loose = blocks, queued, is_loose
        self.happened: list[Any] = []
        self.start = 0
        self.distances = [0, 0]  # blocks of which something is there before they begin, at most: forward, backward
        self.stood: tuple[list[Boundary], list[Boundary]] = ([], [])

    def walked(self) -> Met:
        """What is met in each block."""
        blocks, order = self.blocks, self.order
        count = blocks.number
        before: list[Any] = [None] * (count + 1)
        back_before: list[Any] = [None] * (count + 1)  # of the block below: one further
        inside: list[Any] = [None] * count
        back_inside: list[Any] = [None] * count
        self.before_forward()
        self._steps(self.step, blocks.forward[0])
        for block in range(count):
            before[block] = self._at(block, turned=False)
            self._steps(blocks.forward[block], blocks.forward[block + 1])
            inside[block] = self._over(block)
        before[count] = self._at(count, turned=False)
        arrivals = [(blocks.of(one), one) for one in order.arrivals]
        at = next((i for i, (block, _) in enumerate(arrivals) if block is not None), len(arrivals))
        self._steps(blocks.forward[count], blocks.backward[count])
        self._arrived([one for _, one in arrivals[:at]])
        of_blocks: dict[int | None, list[int]] = {}
        for block_of, one in arrivals:
            of_blocks.setdefault(block_of, []).append(one)
        for block in reversed(range(count)):
            back_before[block + 1] = self._at(block, turned=True)
            waits, reductions = self.waits(blocks, block), self.reductions
            self._steps(blocks.backward[block + 1], blocks.backward[block])
            self._arrived(of_blocks.get(block, ()))
            back_inside[block] = (*self._over(block), waits if self.reductions > reductions else None)
        back_before[0] = self._at(-1, turned=True)
        return Met(before, inside, back_before, back_inside)

    def stands(self) -> Stands:
        """Where it was."""
        forward, backward = self.stood
        return Stands(tuple(forward), tuple(reversed(backward)))

    def _at(self, block: int, *, turned: bool) -> Hashable:
        self.start = self.blocks.start(block)
        self.happened = []
        if self.is_loose:
            found = self.besides(self.blocks, block, turned=turned)
            there = self.noted()
            self._let_go()  # which happens inside of the block
            self.stood[turned].append((there, self.noted()))
            return found
        if block in range(1, self.blocks.number - 1):
            far = [(block - other if turned else other - block) for other in self.ahead(self.blocks)]
            self.distances[turned] = max(self.distances[turned], *far, 0)
        return self.standing(self.blocks, self.queued, block, turned=turned)

    def _over(self, block: int) -> tuple[Any, ...]:
        return (self.blocks.kinds[block], *self.happened)

    def _steps(self, first: int, end: int) -> None:
        for step in range(first, end):
            self._let_go()
            self._fetch(self.order.uses[step])
            self._note(None)

    def _arrived(self, numbers: Sequence[int]) -> None:
        for one in numbers:
            gradient: Any = _Gradient(one, self.sizes[one])
            self.after_accumulate(gradient)
            self._note(None)

    def _number(self, parameter: Any) -> int:
        number: int = parameter.number
        return number

    def _note(self, loosely: Any) -> None:
        if self.is_loose:
            self.happened.append(loosely)

    def _gather(self, wanted: Sequence[int]) -> None:
        super()._gather(wanted)
        if wanted:
            self._note(tuple([self.sizes[one] for one in wanted]))

    def _wait(self, handle: Handle) -> None:
        if not handle.is_complete:
            self._note(("wait", *[self.sizes[one] for one in handle.members]))
        super()._wait(handle)

    def _new(self, operator: str, elements: int, category: str) -> Any:
        self.happened.append((operator, elements))
        return elements

    def _drop(self, one: int) -> None:
        self.happened.append(self.sizes[one] if self.is_loose else one - self.start)
        super()._drop(one)
