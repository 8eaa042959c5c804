"""What the blocks of a segment add up to, one after the other."""

from __future__ import annotations

from vramplan.replay.block_profiles import BlockPart
from vramplan.tuples import NamedTuple


class SegmentSum(NamedTuple):
    """What the blocks of a segment but the last one add up to."""

    forward_net: int
    forward_top: int
    again_net: int
    again_top: int
    leaving: int
    backward_net: int
    backward_top: int
    flops: int


def begun(part: BlockPart) -> SegmentSum:
    """The first block of a segment."""
    return SegmentSum(*part.forward, *part.again, part.leaving, *part.backward, part.recomputed_flops)


def longer(whole: SegmentSum, part: BlockPart) -> SegmentSum:
    """The segment with an inner block more at its end, whose backward then comes first."""
    return SegmentSum(
        whole.forward_net + part.forward[0],
        max(whole.forward_top, whole.forward_net + part.forward[1]),
        whole.again_net + part.again[0],
        max(whole.again_top, whole.again_net + part.again[1]),
        whole.leaving + part.leaving,
        whole.backward_net + part.backward[0],
        max(part.backward[1], part.backward[0] + whole.backward_top),
        whole.flops + part.recomputed_flops,
    )
