"""Blocks that are alike under stage 3 of ZeRO are played once, as elsewhere: what is gathered moves on to the next.

What there is of the blocks around when one begins is not the same for each: what was gathered ahead, and the gradients
that wait to be reduced. A walk over the modules alone, without a tensor, tells after how many blocks it is, or at least
after how many the same is gathered, waited for and let go again. Of such blocks a few are played. When the iteration
goes on behind those that are not, what is there becomes that of the blocks around, if it was there when they began, or
it becomes what the walk has there: more than there was, or less, by what each of the blocks gathers and does not let
go. Where it is neither, the iteration is played again, block by block.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero3_blocks import ContiguousBlocks
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.engines.deepspeed.zero3_standing import Standing, WalkNotes
from vramplan.replay.ledger import NotAlike
from vramplan.replay.recorder import Tape
from vramplan.tuples import NamedTuple


class Turns(NamedTuple):
    """Rows of blocks, each from a first one to before an end, that are as those `period` blocks behind them."""

    rows: tuple[tuple[int, int], ...]
    period: int


Boundary = tuple[WalkNotes, WalkNotes]  # before and after the last module of the block before lets go of what it used


class Stands(NamedTuple):
    """Where the walk is when forward comes to each block, and when backward has been in each."""

    forward: tuple[Boundary, ...]
    backward: tuple[Boundary, ...]


class TurningPlan:
    """What is known of the blocks of a model under a policy: `turns` is None where each is played."""

    def __init__(
        self,
        blocks: ContiguousBlocks | None,
        queued: tuple[int, ...],
        turns: Turns | None,
        stands: Stands | None = None,
    ) -> None:
        self.blocks, self.queued, self.turns, self.stands = blocks, queued, turns, stands
        self.less = 1  # blocks at both ends that are played besides, should these not be alike

    def narrow(self) -> None:
        """Take fewer blocks for alike: what was before them takes longer to have no effect than the walk says."""
        if self.turns is None:
            return
        rows, period = self.turns
        rows = tuple((first + self.less, end - self.less) for first, end in rows)
        rows = tuple((first, end) for first, end in rows if end - first >= 2 * period)
        self.less *= 4
        self.turns = Turns(rows, period) if rows else None


class There(NamedTuple):
    """What there was when the iteration came to blocks that stand for others."""

    standing: Hashable
    as_walked: int | None  # as the walk is before that boundary or after it, if it is
    held: frozenset[int]  # by modules around, which the walk does not know


class Inside(NamedTuple):
    """The same of backward, and what waited then."""

    there: There
    waits: Hashable
    reductions: int


class Turning(Standing):
    """The walk of one iteration of which blocks that are alike are played once, where there is a plan of them."""

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order, plan: TurningPlan | None = None) -> None:
        super().__init__(tape, policy, order)
        self.plan, self.turns = plan, None if plan is None else plan.turns
        # the blocks of a checkpoint of several are played one by one
        self.every_block_of_a_checkpoint = True
        self.is_turned = False  # backward has begun
        self.stack = -1  # the one that runs, or that ran last
        self.last = -1  # the block that was built last
        self.unit: tuple[int, int, There] | None = None  # the unit that it is in, its first block, what was there then
        self.jumps: list[tuple[int, int, int]] = []  # first block played, the one behind it, blocks that it stands for
        self.inside: Inside | None = None  # the one that backward is in
        self.shift: dict[int, int] = {}  # of parameters of blocks that stand for others: to those of the last of these

    # ------------------------------------------------------------------------------------------------- the blocks
    def apart(self) -> list[int]:
        """The blocks that are as no other; without a plan what is there of the next one is different each time."""
        turns = self.turns
        if turns is None or self.stack != self._blocks.stack:
            return [*range(self.policy.blocks)]
        alike = {block for first, end in turns.rows for block in range(first, end)}
        return [first for block, first in enumerate(self._blocks.firsts[:-1]) if block not in alike]

    def turn(self, block: int) -> int:
        """Which one of a period a block is."""
        if self.turns is None or self.stack != self._blocks.stack:
            return 0
        return self._blocks.at(block) % self.turns.period

    def units(self, make: Any) -> Any:
        """Each block as it is; the walk is told which one it comes to."""
        self.stack += 1
        if self.turns is None or self.stack != self._blocks.stack:
            return make

        def build(number: int) -> Any:
            self._arrive_at(number)
            return make(number)

        return build

    def _arrive_at(self, block: int) -> None:
        """Forward comes to a block of the model, which is the next one unless some are not played."""
        repeated = [(unit, times) for unit, times in self.tape.path if times > 1]
        if len(repeated) > 1:
            raise self._not_alike()
        number = self._blocks.at(block)
        if block != self.last + 1:
            if self.unit is None:
                raise self._not_alike()
            _, first, there = self.unit
            end = self._blocks.at(self.last + 1)
            if (number - end) % (end - first):
                raise self._not_alike()
            self.jumps.append((first, end, number - end))
            self._skip(first, end, number, there)
        if not repeated:
            self.unit = None
        elif self.unit is None or self.unit[0] != repeated[0][0]:
            self.unit = repeated[0][0], number, self._there(number)
        self.last = block

    def _skip(self, first: int, end: int, now: int, there: There) -> None:
        """What was played last is from now on the last of what it stands for."""
        blocks = self._blocks
        by = blocks.start(now) - blocks.start(end)
        furthest = max(self.ahead(blocks), default=0) + now - end
        if self._standing(end) == there.standing and furthest < blocks.number - 1:
            self.move(blocks, by)
            self.skip(blocks.forward[now] - blocks.forward[end], self._queued)
        else:
            self._go_on(there, self._walked(end), self._walked(now))
        for one in range(blocks.start(first), blocks.start(end)):
            self.shift[one] = by
            if one in self.after:
                self.after[one + by] = self.after[one] + by
        for key, one in self.numbers.items():
            if blocks.start(first) <= one < blocks.start(end):
                self.numbers[key] = one + by
        nobody: list[Any] = [None] * by
        self.created.extend(nobody)

    # ---------------------------------------------------------------------------------------------------- backward
    def now(self, members: tuple[int, ...]) -> tuple[int, ...]:
        """What forward noted of a block that stands for others, as backward finds it."""
        shift = self.shift
        return tuple([one + shift.get(one, 0) for one in members]) if shift else members

    def turned_to(self, members: tuple[int, ...]) -> None:
        """Backward comes to a module: where blocks are behind it that are not played, those are over too."""
        if not self.is_turned or not self.jumps or not members:
            return
        blocks = self._blocks
        block = blocks.of(members[0])
        if self.inside is not None:
            first, end, missing = self.jumps[-1]
            if block is not None and first + missing <= block < end + missing:
                return
            if block != first - 1:
                raise self._not_alike()
            self._skip_back(first, end, missing, self.inside)
            self.inside = None
            self.jumps.pop()
        if self.jumps:
            first, end, missing = self.jumps[-1]
            if block is not None and first + missing <= block < end + missing:
                top = end + missing - 1
                self.inside = Inside(self._there(top, turned=True), self.waits(blocks, top), self.reductions)

    def _skip_back(self, first: int, end: int, missing: int, inside: Inside) -> None:
        """What was played last is from now on the first of what it stands for."""
        blocks = self._blocks
        self._gradients(first, end, missing, inside)
        lowest = min(self.ahead(blocks), default=1 + missing) - missing
        if self._standing(first + missing - 1, turned=True) != inside.there.standing or lowest < 1:
            ends, goes_on = (self._walked(one - 1, turned=True) for one in (first + missing, first))
            self._go_on(inside.there, ends, goes_on)
            return
        self._left(first, end, missing)
        self.move(blocks, blocks.start(first) - blocks.start(first + missing))
        self.skip(blocks.backward[first] - blocks.backward[first + missing], self._queued)

    def _left(self, first: int, end: int, missing: int) -> None:
        """What stays whole though it is not used any more, of the blocks that are not played too."""
        blocks, room = self._blocks, self.room
        played = range(blocks.start(first + missing), blocks.start(end + missing))
        left = sum(self.sizes[one] for one in self.whole if one in played and self.is_left(one) and not self.stays[one])
        self.live += left * (missing // (end - first))
        if self.room != room:
            raise self._not_alike()

    def _gradients(self, first: int, end: int, missing: int, began: Inside) -> None:
        """What waits in the bucket then: that of blocks that are not played too, or the same after each period."""
        blocks = self._blocks
        if self.reductions > began.reductions:
            if self.waits(blocks, first + missing - 1) != began.waits:
                raise self._not_alike()
            by = blocks.start(first + missing) - blocks.start(first)
            self.bucket = [one if blocks.of(one) is None else one - by for one in self.bucket]
            return
        own = [one for one in self.bucket if blocks.start(first + missing) <= one < blocks.start(end + missing)]
        by = blocks.start(end) - blocks.start(first)
        for time in range(1, missing // (end - first) + 1):
            self.bucket += [one - time * by for one in own]
            self.filled += sum(self.sizes[one] for one in own)
        if self.filled > self.policy.zero.reduce_bucket_size:
            raise self._not_alike()

    # ---------------------------------------------------------------------------------------------------- the state
    @property
    def _blocks(self) -> ContiguousBlocks:
        assert self.plan is not None
        assert self.plan.blocks is not None
        return self.plan.blocks

    def _there(self, block: int, *, turned: bool = False) -> There:
        as_walked = self._as(self._walked(block, turned=turned))
        return There(self._standing(block, turned=turned), as_walked, frozenset(+self.held))

    def _walked(self, block: int, *, turned: bool = False) -> Boundary | None:
        """Where the walk is when it comes to a block."""
        assert self.plan is not None
        stands = self.plan.stands
        if stands is None:
            return None
        return stands.backward[block + 1] if turned else stands.forward[block]

    def _as(self, boundary: Boundary | None) -> int | None:
        if boundary is None:
            return None
        here = self.stand()
        return next((side for side, noted in enumerate(boundary) if noted.stand == here), None)

    def _go_on(self, there: There, ends: Boundary | None, goes_on: Boundary | None) -> None:
        """Blocks that are played end where the walk is at `ends`, and the last one that they stand for at `goes_on`."""
        side = there.as_walked
        if any(self._blocks.of(one) is not None for one in there.held) or there.held != frozenset(+self.held):
            raise self._not_alike()
        if side is None or goes_on is None or self._as(ends) != side:
            raise self._not_alike()
        try:
            self.go_on(goes_on[side])
        except NotAlike:
            raise self._not_alike() from None

    def _standing(self, block: int, *, turned: bool = False) -> Any:
        return self.standing(self._blocks, self._queued, block, turned=turned)

    @property
    def _queued(self) -> tuple[int, ...]:
        assert self.plan is not None
        return self.plan.queued

    def _not_alike(self) -> NotAlike:
        assert self.plan is not None
        self.plan.narrow()
        return NotAlike()

    def numbered(self, known: Any) -> dict[int, int]:
        """The numbers of parameters, of which some stand for others."""
        return {id(one): number + self.shift.get(number, 0) for one, number in known}
