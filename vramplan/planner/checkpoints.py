"""The walk over the blocks that a strategy means: which are checkpoints (`replay/placed.py`), and what is kept in each.

An encoder-decoder model has a strategy in each of its stacks; a checkpoint never reaches from one into the other.
"""

from __future__ import annotations

from functools import lru_cache

from vramplan.replay.checkpoints import ALTERNATE_MATMULS, MATMULS
from vramplan.replay.models.modules import CORE, GELU, GELU_NORMS, Segment
from vramplan.replay.placed import SELECTIVE_OP as SELECTIVE_OP
from vramplan.replay.placed import blocks_per_segment as blocks_per_segment
from vramplan.replay.placed import checkpoint_ranges, in_each
from vramplan.replay.placed import spelled as spelled

STRATEGIES = ("none", "sqrt", "full")  # the ladder, in the order of extra compute
OPTIMAL = "optimal"  # where its checkpoints are depends on sizes: planner/placement/strategies.py
SELECTIVE = "selective"  # the attention core of every block (arXiv:2205.05198, section 5)


def segments_of(strategy: str, layers: int, *, every_second_matmul: bool = False) -> tuple[Segment, ...]:
    """The walk over the blocks: equal consecutive checkpoints together, stored blocks between them."""
    if strategy == SELECTIVE:
        return (Segment(1, layers, False, CORE),)
    if strategy in (GELU, GELU_NORMS):  # of llm.c
        return (Segment(1, layers, False, strategy),)
    if strategy == SELECTIVE_OP:
        return (Segment(layers, 1, True, ALTERNATE_MATMULS if every_second_matmul else MATMULS),)
    runs: list[Segment] = []
    at = 0
    for first, last in (*checkpoint_ranges(strategy, layers), (layers, layers - 1)):
        if first > at:
            runs.append(Segment(1, first - at, False))
        size = last - first + 1
        if size > 0:
            before = runs[-1] if runs else None
            if before is not None and before.checkpointed and before.blocks == size:
                runs[-1] = Segment(before.times + 1, size, True)
            else:
                runs.append(Segment(1, size, True))
        at = last + 1
    assert all(segment.blocks > 0 for segment in runs)
    return tuple(runs)


@lru_cache(maxsize=256)
def segments_in(strategy: str, stacks: tuple[int, ...], *, every_second_matmul: bool = False) -> tuple[Segment, ...]:
    """The walk over the blocks of all stacks, one after the other."""
    return tuple(
        segment
        for one, layers in zip(in_each(strategy, stacks), stacks, strict=True)
        for segment in segments_of(one, layers, every_second_matmul=every_second_matmul)
    )
