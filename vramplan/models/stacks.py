"""What models of two stacks of blocks have in common."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.models.modules import Segment


def split_at(segments: Sequence[Segment], layers: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """The segments of the first `layers` blocks, and those of the blocks after them."""
    first: list[Segment] = []
    rest = list(segments)
    missing = layers
    while missing:
        segment = rest.pop(0)
        size = segment.times * segment.blocks
        if size > missing:
            before, after = _cut(segment, missing)
            rest.insert(0, after)
            segment, size = before, missing
        first.append(segment)
        missing -= size
    return tuple(first), tuple(rest)


def _cut(segment: Segment, blocks: int) -> tuple[Segment, Segment]:
    if not segment.checkpointed:
        return segment._replace(times=1, blocks=blocks), segment._replace(
            times=1, blocks=segment.times * segment.blocks - blocks
        )
    times, part = divmod(blocks, segment.blocks)
    if part:
        raise ValueError("a checkpoint reaches from one stack into the other")
    return segment._replace(times=times), segment._replace(times=segment.times - times)
