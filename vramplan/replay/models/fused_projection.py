"""Attention of a llama whose code has queries, keys and values in one projection, as that of the first Qwen has.

Source: modeling_qwen.py beside the weights of Qwen/Qwen-7B, QWenAttention: c_attn, which the scripts of its authors
name as one target of LoRA.
"""

from __future__ import annotations

from vramplan.replay.models.llama import Attention
from vramplan.replay.models.modules import Linear, Recipe
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.views import transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class FusedAttention(Attention):
    """The same attention over the three parts of one product."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe, self.sizes = recipe, (query, key, key)
        self.qkv_proj = Linear(tape, "qkv_proj", hidden, sum(self.sizes), dtype, bias=shape.qkv_bias)
        self.o_proj = Linear(tape, "o_proj", query, hidden, dtype, bias=shape.output_bias)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        size = self.recipe.shape.head_size
        batch, length, _ = hidden.shape
        parts = split_with_sizes(self.qkv_proj(hidden), self.sizes)
        query, key, value = (view(one, (batch, length, one.shape[-1] // size, size)) for one in parts)
        return transpose(query, 1, 2), transpose(key, 1, 2), transpose(value, 1, 2)
