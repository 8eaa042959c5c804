"""What scaled rotary positions keep beside plain ones (transformers 5.23, modeling_rope_utils.py, dynamic_rope_update).

The kinds `linear`, `yarn` and `llama3` only have other numbers in the same tensors.
"""

from __future__ import annotations

from vramplan.replay.models.modules import Recipe
from vramplan.values.model import ModelShape

DYNAMIC, LONGROPE = "dynamic", "longrope"


def keeps(shape: ModelShape, sequence_length: int) -> bool:
    """Whether scaled rotary positions keep a tensor that is no buffer from one step to the next.

    `longrope` keeps the long frequencies from the first forward pass on; `dynamic` keeps the longest length so far, a
    number on the device, once that is more than `max_positions`.
    """
    if shape.rope_scaling == DYNAMIC:
        return sequence_length > shape.max_positions
    return shape.rope_scaling == LONGROPE


def kept(recipe: Recipe, rotated: int) -> list[int]:
    """Bytes of that tensor: frequencies in fp32, or one whole number."""
    if not keeps(recipe.shape, recipe.sequence_length):
        return []
    return [4 * (rotated // 2) if recipe.shape.rope_scaling == LONGROPE else 8]
