"""The attention core of families that compute it as Llama does: scores, mask, softmax, dropout, the values."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.llama import eager_attention, fused_attention
from vramplan.replay.models.modules import Recipe
from vramplan.replay.models.recomputed import Context, recomputable
from vramplan.replay.operators.attention import LARGEST_FLASH_HEAD, scaled_dot_product
from vramplan.replay.operators.views import contiguous, transpose
from vramplan.replay.tensors import Tensor

Eager = Callable[[Tensor, Tensor, Tensor, Tensor | None, int, float], tuple[Tensor, Tensor]]


def attend(
    recipe: Recipe,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None = None,
    *,
    causal: bool = True,
    eager: Eager = eager_attention,
) -> Context:
    """The result [B, S, a, d] and, of eager attention, the weights; a checkpoint if the job recomputes the core.

    `eager`: the family's own eager attention.

    Source: eager_attention_forward of the families; transformers integrations/sdpa_attention.py.
    """

    def core(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Context:
        if recipe.attention == "eager":
            groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
            return eager(query, key, value, mask, groups, recipe.attention_dropout)
        if mask is None and key.shape[-1] <= LARGEST_FLASH_HEAD:
            p = recipe.attention_dropout
            output = scaled_dot_product(query, key, value, recipe.attention, p, causal=causal)
        else:
            output = fused_attention(query, key, value, mask, recipe)
        return contiguous(transpose(output, 1, 2)), None

    return recomputable(recipe, core, query, key, value, mask, holds=position_ids)
