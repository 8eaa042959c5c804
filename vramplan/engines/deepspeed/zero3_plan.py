"""Which blocks are alike under stage 3 of ZeRO, told by a walk over the modules without a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero3 import Zero3
from vramplan.engines.deepspeed.zero3_blocks import ContiguousBlocks, blocks_of
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.engines.deepspeed.zero3_turning import TurningPlan, Turns
from vramplan.replay.models.modules import Segment
from vramplan.tuples import NamedTuple

MOST_PERIOD = 8  # blocks after which the same comes again


@lru_cache(maxsize=64)
def plan_of(order: Order, policy: Zero3Policy, stacks: tuple[tuple[Segment, ...], ...], loss: str) -> TurningPlan:
    """Which blocks of the deepest stack are alike, by a walk over the modules.

    `stacks`: what is stored of each and what is checkpointed. `loss`: one that uses the head in parts has a plan apart.
    """
    deepest = max(range(len(stacks)), key=lambda stack: sum(one.times * one.blocks for one in stacks[stack]))
    blocks = blocks_of(order, stacks[deepest], deepest)
    queued = (0, *accumulate(map(len, order.uses)))
    if blocks is None or blocks.number < 2 * 2:
        return TurningPlan(None, queued, None)
    return TurningPlan(blocks, queued, _turns(_Walk(policy, order, blocks, queued).walked(), blocks.number))


class Met(NamedTuple):
    """What there is when a block begins, and what is gathered and let go in it, in forward and in backward."""

    before: list[Any]
    inside: list[Any]
    back_before: list[Any]
    back_inside: list[Any]
    ahead: tuple[int, int]  # blocks of which something is there before they begin, at most: in forward, in backward


def _turns(met: Met, count: int) -> Turns | None:
    """The period that spares most blocks, and of these the shortest."""
    best, most = None, 0
    lowest, highest = 2 + met.ahead[1], count - 1 - met.ahead[0]
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
    return all(values[one] == values[other] for values in met[:-1])


class _Nothing:
    """The tape of a walk without tensors."""

    recomputing = None
    unrolled = False

    def relabel(self, tensor: Any, category: str) -> None:
        """There is none."""

    def several(self, *given: Any) -> None:
        """There is none."""


class _Gradient:
    """One that is there."""

    def __init__(self, number: int, elements: int) -> None:
        self.number, self.elements, self.grad = number, elements, None


class _Walk(Zero3):
    """A walk over the modules of an iteration that notes what happens in each block."""

    def __init__(self, policy: Zero3Policy, order: Order, blocks: ContiguousBlocks, queued: tuple[int, ...]) -> None:
        nothing: Any = _Nothing()
        super().__init__(nothing, policy, order)
        self.blocks, self.queued = blocks, queued
        self.noted: list[Any] = []
        self.start = 0
        self.distances = [0, 0]

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
        for block in reversed(range(count)):
            back_before[block + 1] = self._at(block, turned=True)
            waits, reductions = self.waits(blocks, block), self.reductions
            self._steps(blocks.backward[block + 1], blocks.backward[block])
            self._arrived([one for of, one in arrivals if of == block])
            back_inside[block] = (*self._over(block), waits if self.reductions > reductions else None)
        back_before[0] = self._at(-1, turned=True)
        forward, backward = self.distances
        return Met(before, inside, back_before, back_inside, (forward, backward))

    def _at(self, block: int, *, turned: bool) -> Any:
        self.start = self.blocks.start(block)
        self.noted = []
        if block in range(1, self.blocks.number - 1):
            far = [(block - other if turned else other - block) for other in self.ahead(self.blocks)]
            self.distances[turned] = max(self.distances[turned], *far, 0)
        return self.standing(self.blocks, self.queued, block, turned=turned)

    def _over(self, block: int) -> tuple[Any, ...]:
        return (self.blocks.kinds[block], *self.noted)

    def _steps(self, first: int, end: int) -> None:
        for step in range(first, end):
            self._let_go()
            self._fetch(self.order.uses[step])

    def _arrived(self, numbers: Sequence[int]) -> None:
        for one in numbers:
            gradient: Any = _Gradient(one, self.sizes[one])
            self.after_accumulate(gradient)

    def _number(self, parameter: Any) -> int:
        number: int = parameter.number
        return number

    def _new(self, operator: str, elements: int, category: str) -> Any:
        self.noted.append((operator, elements))

    def _drop(self, one: int) -> None:
        self.noted.append(one - self.start)
        super()._drop(one)
