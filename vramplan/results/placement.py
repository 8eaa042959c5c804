"""The answer of `vramplan checkpoints`: where checkpoints can be, what each way needs and what it recomputes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.tuples import NamedTuple
from vramplan.values.job import Assumption


class Strategy(NamedTuple):
    """One way to place the checkpoints of a model."""

    name: str  # none | full | sqrt | every:K | layers:[...] | optimal
    note: str  # why it is listed
    checkpoints: tuple[tuple[int, int], ...]  # first and last block, 0-based and inclusive
    allocated_bytes: int  # the peak of an iteration
    fits: bool  # within the budget
    recomputed_flops: int
    recomputed_fraction: float  # of the operations of a step without checkpoints


class CurvePoint(NamedTuple):
    """`every:K`, as replayed and by the equation k*A + (L/k)*A of the textbooks."""

    blocks_per_segment: int  # K
    segments: int
    allocated_bytes: int
    recomputed_fraction: float
    textbook_units: float  # k + L/k with k = segments, in layers' activations
    textbook_bytes: int


class PlacementResult(NamedTuple):
    """The whole answer."""

    name: str
    job: Mapping[str, Any]  # resolved, in the words of the job format
    budget_bytes: int  # of allocated memory
    budget_basis: str
    blocks: int
    stacks: tuple[int, ...]  # blocks of each stack, in the order in which forward runs them
    stored_block_bytes: int  # what one block keeps for backward: the A of the textbooks
    checkpoint_bytes: int  # what one checkpoint keeps: its input, and what it needs beside
    smallest_peak_bytes: int  # no placement needs less
    verdict: str  # fits: some placement is within the budget | does-not-fit
    strategies: tuple[Strategy, ...]
    curve: tuple[CurvePoint, ...]
    textbook_segments: int  # k = sqrt(L), rounded
    best_blocks_per_segment: int  # the K of the lowest point of the true curve
    flags: str | None  # options that pin the optimal placement
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


class PlacementCode(NamedTuple):
    """What the code of a placement is made from."""

    model: str
    strategy: str  # as it was asked for
    stacks: tuple[int, ...]  # blocks of each stack, in the order in which forward runs them
    lists: tuple[str, ...]  # how the name of the list of blocks ends in which each stack is
    segments: tuple[tuple[int, int], ...]  # first and last block of each checkpoint, numbered through the stacks
    returned: int  # values that a block returns, the hidden state first
    carried: tuple[tuple[int, int], ...]  # (argument after the hidden state, value that the block before returned)
    reentrant: bool
    tells_parts: bool  # whether modules inside of a block ask if it is checkpointed
