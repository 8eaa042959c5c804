"""GPT-NeoX and Pythia, as transformers 5.23 computes them (models/gpt_neox/modeling_gpt_neox.py): a fused projection of
queries, keys and values, rotary positions on a part of each head, attention and MLP beside each other.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, rotate_half
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    in_tiles,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.recomputed import cached
from vramplan.replay.operators.elementwise import add, dropout, mul
from vramplan.replay.operators.views import cat, contiguous, narrow, split, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: turn the first part of each head, hand the rest through."""
    rotated = cos.shape[-1]
    rest = query.shape[-1] - rotated
    cos, sin = (
        cos.alias((cos.shape[0], 1, *cos.shape[1:]), None, None),
        sin.alias((sin.shape[0], 1, *sin.shape[1:]), None, None),
    )
    query_rot, query_pass = narrow(query, -1, rotated), narrow(query, -1, rest)
    key_rot, key_pass = narrow(key, -1, rotated), narrow(key, -1, rest)
    query_embed = add(mul(query_rot, cos), mul(rotate_half(query_rot), sin))
    key_embed = add(mul(key_rot, cos), mul(rotate_half(key_rot), sin))
    query_embed = cat([query_embed, query_pass], -1)
    key_embed = cat([key_embed, key_pass], -1)
    return query_embed, key_embed


class Attention:
    """GPTNeoXAttention: fused query/key/value projection, each head's three parts side by side."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.hidden_size
        self.recipe = recipe
        self.query_key_value = Linear(tape, "query_key_value", width, 3 * width, dtype, bias=shape.qkv_bias)
        self.dense = Linear(tape, "dense", width, width, dtype, bias=shape.output_bias)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, width = hidden.shape
        heads = (batch, length, shape.attention_heads, 3 * shape.head_size)
        _qkv = transpose(view(self.query_key_value(hidden), heads), 1, 2)
        query, key, value = split(_qkv, shape.head_size)
        query, key = apply_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, width)))
        output = self.dense(output)
        return output, weights


class MLP:
    """GPTNeoXMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.dense_h_to_4h = Linear(tape, "dense_h_to_4h", hidden, inner, dtype, bias=True)
        self.dense_4h_to_h = Linear(tape, "dense_4h_to_h", inner, hidden, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.dense_h_to_4h(hidden)
        hidden = self.act(hidden)
        hidden = self.dense_4h_to_h(hidden)
        return hidden


class Block:
    """GPTNeoXLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.parallel_residual, self.p = recipe.shape.parallel_residual, recipe.hidden_dropout
        self.input_layernorm = LayerNorm(tape, "input_layernorm", width, dtype)
        self.post_attention_layernorm = LayerNorm(tape, "post_attention_layernorm", width, dtype)
        self.attention = Attention(tape, recipe)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> Tensor:
        attention, _weights = self.attention(self.input_layernorm(hidden), self.mask, self.position_ids, self.rotary)
        attention = dropout(attention, self.p)
        if self.parallel_residual:
            feed_forward = self.mlp(self.post_attention_layernorm(hidden))
            feed_forward = dropout(feed_forward, self.p)
            hidden = add(add(feed_forward, attention), hidden)
        else:
            attention = add(attention, hidden)
            feed_forward = self.mlp(self.post_attention_layernorm(attention))
            feed_forward = dropout(feed_forward, self.p)
            hidden = add(feed_forward, attention)
        return hidden


class NeoX(Positions):
    """GPTNeoXForCausalLM, with its loss."""

    peaks_published = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    takes_packing = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        self.rotated = int(shape.head_size * shape.partial_rotary_factor)
        with tape.building(EMBEDDINGS):
            self.embed_in = tape.parameter(
                "embed_in.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (self.rotated // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.rotated)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.gpt_neox(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_in)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def gpt_neox(self, input_ids: Tensor) -> Tensor:
        """GPTNeoXModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_in)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        hidden = dropout(_embeds, recipe.hidden_dropout)
        rotary = self.cosines_and_sines(hidden, self.rotated)
        state = [hidden]
        del hidden
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), state)
        hidden = LayerNorm(tape, "final_layer_norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = NeoX
