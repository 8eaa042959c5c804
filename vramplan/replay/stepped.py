"""The weights that an optimizer steps, as their number and shapes decide how long that takes."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.layouts import Shape
from vramplan.replay.tensors import Parameter
from vramplan.tuples import NamedTuple


class Stepped(NamedTuple):
    """Equal weights: of which shape, whole where devices share them, in or outside of the blocks, and how many."""

    shape: Shape
    in_block: bool
    copies: int


def stepped_of(parameters: Sequence[Parameter]) -> tuple[Stepped, ...]:
    """Those that have a gradient."""
    found: dict[tuple[Shape, bool], int] = {}
    for one in parameters:
        if one.node is not None and not one.idle:
            key = (one.shape, bool(one.path))
            found[key] = found.get(key, 0) + one.copies * one.parts
    return tuple(Stepped(shape, in_block, copies) for (shape, in_block), copies in found.items())
