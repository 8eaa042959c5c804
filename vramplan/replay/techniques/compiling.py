"""What a compiler makes of checkpoints whose results are views."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import gives_views


def compiled_segments(family: str, segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """The checkpoints that are left when a model is compiled: neighbours become one where a block gives a view.

    What lies between two checkpoints is kept because the second one reads a result of the first. A view is made again
    at the boundary and belongs to neither, so nothing is kept there and all of the run is computed again together.
    Source: torch/_functorch/partitioners.py, cleanup_recompute_tags.
    """
    if not gives_views(family):
        return tuple(segments)
    found: list[Segment] = []
    for one in segments:
        run = Segment(1, one.times * one.blocks, True) if one.checkpointed else one
        if found and run.checkpointed and found[-1].checkpointed:
            run = Segment(1, found.pop().blocks + run.blocks, True)
        found.append(run)
    return tuple(found)
