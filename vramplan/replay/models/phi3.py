"""Phi-3, Phi-3.5 and Phi-4, as transformers 5.23 computes them (models/phi3/modeling_phi3.py): Llama with fused
projections, dropout before the residual sums, and rotary positions on a part of each head if asked for.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.cores import attend
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Rotary, rotate_half
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE,
    Linear,
    Output,
    Recipe,
    RMSNorm,
    gated_kernel,
    output_embedding,
    rotary_kernel,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.positions import Positions
from vramplan.replay.models.recomputed import cached
from vramplan.replay.models.windows import masks_of
from vramplan.replay.operators.elementwise import add, dropout, mul
from vramplan.replay.operators.views import cat, contiguous, narrow, split, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: turn the first part of each head, hand the rest (which may be empty) through."""
    kernel = rotary_kernel(query.tape)
    if kernel is not None:
        return kernel(query, key, cos, sin)
    rotated = cos.shape[-1]
    rest = query.shape[-1] - rotated
    cos, sin = (
        cos.alias((cos.shape[0], 1, *cos.shape[1:]), None, None),
        sin.alias((sin.shape[0], 1, *sin.shape[1:]), None, None),
    )
    query_rot, query_pass = narrow(query, -1, rotated), narrow(query, -1, rest)
    key_rot, key_pass = narrow(key, -1, rotated), narrow(key, -1, rest)
    query_embed = cat([add(mul(query_rot, cos), mul(rotate_half(query_rot), sin)), query_pass], -1)
    key_embed = cat([add(mul(key_rot, cos), mul(rotate_half(key_rot), sin)), key_pass], -1)
    return query_embed, key_embed


class Attention:
    """Phi3Attention: one projection for queries, keys and values."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.recipe = recipe
        self.query_width = shape.attention_heads * shape.head_size
        self.key_width = shape.key_value_heads * shape.head_size
        fused = self.query_width + 2 * self.key_width
        self.o_proj = Linear(tape, "o_proj", self.query_width, shape.hidden_size, dtype, bias=False)
        self.qkv_proj = Linear(tape, "qkv_proj", shape.hidden_size, fused, dtype, bias=False)

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        shape = recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        kv_heads = (batch, length, shape.key_value_heads, shape.head_size)
        _qkv = self.qkv_proj(hidden)
        query = narrow(_qkv, -1, self.query_width)
        key = narrow(_qkv, -1, self.key_width)
        value = narrow(_qkv, -1, self.key_width)
        query = transpose(view(query, heads), 1, 2)
        key = transpose(view(key, kv_heads), 1, 2)
        value = transpose(view(value, kv_heads), 1, 2)
        query, key = apply_rotary(query, key, *rotary)
        key, value = cached(key, value)
        output, weights = attend(recipe, query, key, value, mask, position_ids)
        output = contiguous(view(output, (batch, length, self.query_width)))
        output = self.o_proj(output)
        return output, weights


class MLP:
    """Phi3MLP: gated, one projection for both halves."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.inner = shape.intermediate_size
        self.gate_up_proj = Linear(tape, "gate_up_proj", shape.hidden_size, 2 * self.inner, dtype, bias=False)
        self.down_proj = Linear(tape, "down_proj", self.inner, shape.hidden_size, dtype, bias=False)
        self.act = ACTIVATIONS[shape.activation]
        self.kernel = gated_kernel(tape)

    def __call__(self, hidden: Tensor) -> Tensor:
        up = self.gate_up_proj(hidden)
        gate, up = split(up, self.inner)
        if self.kernel is not None:
            return self.down_proj(self.kernel(gate, up))
        up = mul(up, self.act(gate))
        return self.down_proj(up)


class Block(LlamaBlock):
    """Phi3DecoderLayer."""

    attention = Attention
    feed_forward = MLP

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor, rotary: Rotary) -> None:
        super().__init__(tape, recipe, mask, position_ids, rotary)
        self.p = recipe.hidden_dropout

    def joined(self, residual: Tensor, hidden: Tensor) -> Tensor:
        """What came in, and what attention or the feed-forward layer made of it, after a dropout."""
        return add(residual, dropout(hidden, self.p))


class Phi3(Positions):
    """Phi3ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    compiled_graphs = 1
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("phi3",)
    hands_groups_on = True  # `use_gqa_in_sdpa`
    takes_packing = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        self.rotated = int(shape.head_size * shape.partial_rotary_factor)
        with tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(
                "embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32."""
        return [4 * (self.rotated // 2)] * 2

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.rotated)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.model(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.embed_tokens)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """Phi3Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = masks_of(_embeds, recipe)[recipe.shape.sliding_window is not None]
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, self.rotated)
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), hidden)
        hidden = RMSNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Phi3
