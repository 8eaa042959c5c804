"""Where the checkpoints of a strategy are in models of one or two stacks of blocks.

An encoder-decoder model has a strategy in each of its stacks: `sqrt` and `every:K` begin anew with the decoder, and so
does the counting of `selective-layer:K`. Blocks are numbered through both, the encoder's first, in `layers:[...]` and
in every answer. A checkpoint never reaches from one stack into the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from vramplan.planner.checkpoints import checkpoint_ranges, segments_of, spelled
from vramplan.replay.models.modules import Segment


def checkpoint_ranges_in(strategy: str, stacks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """First and last block of each checkpoint, 0-based and inclusive, numbered through the stacks."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for one, layers in zip(_in_each(strategy, stacks), stacks, strict=True):
        ranges += [(at + first, at + last) for first, last in checkpoint_ranges(one, layers)]
        at += layers
    return tuple(ranges)


@lru_cache(maxsize=256)
def segments_in(strategy: str, stacks: tuple[int, ...], *, every_second_matmul: bool = False) -> tuple[Segment, ...]:
    """The walk over the blocks of all stacks, one after the other."""
    return tuple(
        segment
        for one, layers in zip(_in_each(strategy, stacks), stacks, strict=True)
        for segment in segments_of(one, layers, every_second_matmul=every_second_matmul)
    )


def _in_each(strategy: str, stacks: Sequence[int]) -> list[str]:
    """The strategy of each stack by its own numbers."""
    if len(stacks) == 1 or not strategy.startswith("layers:"):
        return [strategy] * len(stacks)
    ranges = checkpoint_ranges(strategy, sum(stacks))
    strategies, at = [], 0
    for layers in stacks:
        inside = [(first - at, last - at) for first, last in ranges if at <= first and last < at + layers]
        strategies.append(spelled(inside))
        at += layers
    return strategies
