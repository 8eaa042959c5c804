"""The parts of a model that one device of an interleaved pipeline has: each as if it were all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.replay.models.modules import Segment

if TYPE_CHECKING:
    from vramplan.replay.setup import Setup


def part_of(setup: Setup, i: int) -> Setup:
    """One of the parts that the device of a stage has; the segments of the setup are those of the longest part."""
    stage = setup.stage
    assert stage is not None
    part = stage._replace(
        parts=stage.parts[i : i + 1],
        starts=stage.starts[i : i + 1],
        first=stage.first and i == 0,
        last=stage.last and i == len(stage.parts) - 1,
        moments=(),
        whole=stage.device_parts,
    )
    blocks = stage.parts[i]
    segments = first_blocks(setup.segments, blocks)
    return setup._replace(stage=part, model=setup.model._replace(layers=blocks), segments=segments)


def first_blocks(segments: Sequence[Segment], blocks: int) -> tuple[Segment, ...]:
    """The walk over the first so many blocks of a longer walk: a checkpoint may end early, as at the end of a model."""
    found: list[Segment] = []
    left = blocks
    for one in segments:
        whole = min(one.times, left // one.blocks)
        if whole:
            found.append(one._replace(times=whole))
            left -= whole * one.blocks
        if whole < one.times:
            if left:
                found.append(one._replace(times=1, blocks=left))
            break
    return tuple(found)
