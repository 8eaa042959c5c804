"""What a block is to the placement of checkpoints, and what a piece of a placement finds of those before it."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.planner.placement.optimal import Placement
from vramplan.replay.record import Record
from vramplan.tuples import NamedTuple


class Label(NamedTuple):
    """What a block is: blocks with equal labels add the same."""

    stack: int
    first: bool  # of its stack
    last: bool
    shares: object  # blocks that share the same tensors
    made: object  # blocks that compute the same


class Subject(NamedTuple):
    """A model that can be replayed with any placement."""

    stacks: tuple[int, ...]  # blocks of each, none empty
    labels: tuple[Label, ...]
    replay: Callable[[Placement], Record]

    def bounds(self, stack: int) -> tuple[int, int]:
        """First and last block of a stack."""
        start = sum(self.stacks[:stack])
        return start, start + self.stacks[stack] - 1


Holdings = frozenset[tuple[object, bool]]
"""Kinds of blocks, each with whether one of them is in a checkpoint."""


class FoundInStack(NamedTuple):
    """What a piece finds of those before it in its stack; and of stacks whose result nobody asks for, how they are.

    `opens` says that the first block of the stack is in a checkpoint.
    """

    stack: int
    opens: bool
    kinds: Holdings
    carried: tuple[bool, ...]  # of each such stack, whether its last block is in a checkpoint


NOTHING = FoundInStack(0, False, frozenset(), ())
