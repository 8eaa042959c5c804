"""GPT-BigCode (StarCoder) with a language-model head, as transformers 5.23 computes it
(models/gpt_bigcode/modeling_gpt_bigcode.py): GPT-2 of linear layers, most often with one head of keys and values.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import GPT2, mask_of
from vramplan.replay.models.llama import eager_attention, fused_attention
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    LayerNorm,
    Linear,
    Recipe,
    in_tiles,
    words,
)
from vramplan.replay.models.recomputed import recomputable
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.elementwise import add, dropout
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.views import contiguous, split, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor

Heads = tuple[Tensor, Tensor, Tensor]


class Attention:
    """GPTBigCodeAttention: one projection of queries, keys and values."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width, key = shape.hidden_size, shape.key_value_heads * shape.head_size
        self.recipe = recipe
        self.c_attn = Linear(tape, "attn.c_attn", width, width + 2 * key, dtype, bias=True)
        self.c_proj = Linear(tape, "attn.c_proj", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        query, key, value = self.one_head(hidden) if recipe.shape.key_value_heads == 1 else self.all_heads(hidden)
        key, value = key.tape.role(KeyValues).kept(key, value)
        output, weights = recomputable(recipe, self.core, query, key, value, mask)
        output = contiguous(view(output, hidden.shape))
        output = self.c_proj(output)
        output = dropout(output, recipe.hidden_dropout)
        return output, weights

    def one_head(self, hidden: Tensor) -> Heads:
        """The heads of queries, and the one of keys and the one of values, before the positions."""
        shape = self.recipe.shape
        batch, length, width = hidden.shape
        size = shape.head_size
        whole = self.c_attn(hidden)
        query, key, value = split_with_sizes(view(whole, (batch, 1, length, whole.shape[-1])), (width, size, size))
        query = transpose(view(query, (batch, length, shape.attention_heads, size)), 1, 2)
        return query, key, value

    def all_heads(self, hidden: Tensor) -> Heads:
        """Queries, keys and values of as many heads, of which the projection has the three side by side."""
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        whole = view(self.c_attn(hidden), (batch, length, shape.attention_heads, 3 * shape.head_size))
        query, key, value = split(transpose(whole, 1, 2), shape.head_size)
        return query, key, value

    def core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """eager_attention_forward or sdpa_attention_forward (integrations/sdpa_attention.py)."""
        recipe = self.recipe
        if recipe.attention == "eager":
            groups = recipe.shape.attention_heads // recipe.shape.key_value_heads
            return eager_attention(query, key, value, mask, groups, recipe.attention_dropout)
        return contiguous(transpose(fused_attention(query, key, value, mask, recipe), 1, 2)), None


class MLP:
    """GPTBigCodeMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.c_fc = Linear(tape, "mlp.c_fc", shape.hidden_size, shape.intermediate_size, dtype, bias=True)
        self.c_proj = Linear(tape, "mlp.c_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.c_fc(hidden)
        hidden = self.act(hidden)
        hidden = self.c_proj(hidden)
        return dropout(hidden, self.p)


class Block:
    """GPTBigCodeBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.ln_1 = LayerNorm(tape, "ln_1", width, dtype)
        self.attn = Attention(tape, recipe)
        self.ln_2 = LayerNorm(tape, "ln_2", width, dtype)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.mask = mask

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.ln_1(hidden)
        attention, _weights = self.attn(hidden, self.mask)
        hidden = add(attention, residual)
        residual = hidden
        hidden = self.ln_2(hidden)
        feed_forward = self.mlp(hidden)
        hidden = add(residual, feed_forward)
        return hidden


class GPTBigCode(GPT2):
    """GPTBigCodeForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    block_lists = ("h",)
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`

    def buffers(self) -> list[int]:
        """Bytes of the buffers: which positions see which, one byte each."""
        return [self.recipe.shape.max_positions**2]

    def transformer(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """GPTBigCodeModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        if position_ids is None:
            position_ids = tape.new("arange", (1, input_ids.shape[1]), INT64, False)
        mask = mask_of(_embeds, recipe)
        _position_embeds = embedding(position_ids, self.wpe)
        hidden = add(_embeds, _position_embeds)
        hidden = dropout(hidden, recipe.embedding_dropout)
        state = [hidden]
        del hidden  # the original's loop has no other name for it
        hidden = run_blocks(tape, recipe.segments, lambda _: Block(tape, recipe, mask), state)
        return LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD: Any = GPTBigCode
