"""Where the checkpoints of a strategy are in models of one or two stacks of blocks.

An encoder-decoder model has a strategy in each of its stacks: `sqrt` and `every:K` begin anew with the decoder, and so
does the counting of `selective-layer:K`. Blocks are numbered through both, the encoder's first, in `layers:[...]` and
in every answer. A checkpoint never reaches from one stack into the other.
"""

from __future__ import annotations

from functools import lru_cache

from vramplan.planner.checkpoints import segments_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.placed import checkpoint_ranges_in as checkpoint_ranges_in
from vramplan.replay.placed import in_each


@lru_cache(maxsize=256)
def segments_in(strategy: str, stacks: tuple[int, ...], *, every_second_matmul: bool = False) -> tuple[Segment, ...]:
    """The walk over the blocks of all stacks, one after the other."""
    return tuple(
        segment
        for one, layers in zip(in_each(strategy, stacks), stacks, strict=True)
        for segment in segments_of(one, layers, every_second_matmul=every_second_matmul)
    )
