"""GPT-J with a language-model head, as transformers 5.23 computes it (models/gptj/modeling_gptj.py): attention and MLP
beside each other behind one norm, scores in fp32, and rotary positions that each block looks up in a table of its own.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.glm import rotate_half
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES_WITH_BIAS,
    SELECTIVE_OP,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    in_tiles,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS, HEAD
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, dropout, mul, mul_scalar
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import cat, contiguous, narrow, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, Tensor
from vramplan.values.model import ModelShape


def turned_of(shape: ModelShape) -> int:
    """`rotary_dim`: elements of each head that rotary positions turn."""
    return round(shape.head_size * shape.partial_rotary_factor)


def apply_rotary(x: Tensor, sincos: Tensor) -> Tensor:
    """apply_rotary_pos_emb, of queries or keys [B, S, a, r]: each sine and cosine twice."""
    tape, shape = x.tape, (*sincos.shape[:2], 1, sincos.shape[2])
    sin = tape.new("repeat_interleave", shape, sincos.dtype, sincos.batched)
    cos = tape.new("repeat_interleave", shape, sincos.dtype, sincos.batched)
    return add(mul(x, cos), mul(rotate_half(x), sin))


class Attention:
    """GPTJAttention, and GPTJFlashAttention2: none of its projections has a bias."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=False)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=False)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=False)

    def __call__(self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.recipe.shape
        batch, length, _ = hidden.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        query = self.q_proj(hidden)
        key = self.k_proj(hidden)
        value = self.v_proj(hidden)
        query, key = view(query, heads), view(key, heads)
        value = transpose(view(value, heads), 1, 2)
        sincos, _looked_up = self.places(position_ids, key)
        turned = turned_of(shape)
        rest = shape.head_size - turned
        k_rot, _k_pass = narrow(key, -1, turned), narrow(key, -1, rest)
        q_rot, _q_pass = narrow(query, -1, turned), narrow(query, -1, rest)
        k_rot = apply_rotary(k_rot, sincos)
        q_rot = apply_rotary(q_rot, sincos)
        key = cat([k_rot, _k_pass], -1)
        query = cat([q_rot, _q_pass], -1)
        key, query = transpose(key, 1, 2), transpose(query, 1, 2)
        key, value = self.tape.role(KeyValues).kept(key, value)
        if self.recipe.attention == "flash":  # GPTJFlashAttention2 gives its result in the place of the weights
            output = scaled_dot_product(query, key, value, "flash", self.recipe.attention_dropout)
            weights = transpose(output, 1, 2)
        else:
            output, weights = self.attend(query, key, value, mask)
        output = view(contiguous(transpose(output, 1, 2)), hidden.shape)
        output = self.out_proj(output)
        output = dropout(output, self.recipe.hidden_dropout)
        return output, weights

    def places(self, position_ids: Tensor, key: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Sines and cosines of the places, and what was made to look them up: a copy of the whole table."""
        tape, (rows, length), batched = self.tape, position_ids.shape, position_ids.batched
        shape, dtype = self.recipe.shape, self.recipe.buffer_dtype
        turned = turned_of(shape)
        table = tape.new("repeat", (rows, shape.max_positions, turned), dtype, batched)
        repeated = tape.new("repeat", (rows, length, turned), INT64, batched)
        return to(tape.new("gather", (rows, length, turned), dtype, batched), key.dtype), [table, repeated]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """_attn."""
        query = to(query, FP32)
        key = to(key, FP32)
        weights = matmul(query, transpose(key, -1, -2))
        weights = mul_scalar(weights)
        if mask is not None:
            weights = add(weights, mask)
        weights = softmax(weights)
        weights = to(weights, value.dtype)
        weights = dropout(weights, self.recipe.attention_dropout)
        return matmul(weights, value), weights


class MLP:
    """GPTJMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.fc_in = Linear(tape, "fc_in", shape.hidden_size, shape.intermediate_size, dtype, bias=True)
        self.fc_out = Linear(tape, "fc_out", shape.intermediate_size, shape.hidden_size, dtype, bias=True)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.fc_in(hidden)
        hidden = self.act(hidden)
        hidden = self.fc_out(hidden)
        return dropout(hidden, self.p)


class Block:
    """GPTJBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, mask: Tensor | None, position_ids: Tensor) -> None:
        self.ln_1 = LayerNorm(tape, "ln_1", recipe.shape.hidden_size, recipe.weight_dtype)
        self.attn = Attention(tape, recipe)
        self.mlp = in_tiles(MLP, tape, recipe)
        self.mask, self.position_ids = mask, position_ids

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        residual = hidden
        hidden = self.ln_1(hidden)
        attention, weights = self.attn(hidden, self.mask, self.position_ids)
        feed_forward = self.mlp(hidden)
        hidden = add(add(attention, feed_forward), residual)
        return hidden, weights


class GPTJ:
    """GPTJForCausalLM, with its loss."""

    block_lists = ("h",)
    selective = SELECTIVE_OP
    no_fused_attention = "its code has no SDPA"
    package_flash = "its class for FlashAttention-2 calls the flash-attn package; composed, and never traced"
    holds_outputs = True  # the loop holds a block's weights until the next one returns
    bounded_positions = True
    head_losses = HEAD_LOSSES_WITH_BIAS
    takes_padding = takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte", (shape.vocabulary_size, shape.hidden_size), dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: a table of sines and cosines of each block, in the dtype of the weights."""
        shape, itemsize = self.recipe.shape, self.recipe.buffer_dtype.itemsize
        return [shape.max_positions * turned_of(shape) * itemsize] * shape.layers

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        hidden = self.transformer(input_ids, given if self.recipe.packed else None)
        weight = output_embedding(self.tape, self.recipe, self.wte)
        shape, bias = self.recipe.shape, None
        if shape.task == "lm":
            with self.tape.building(HEAD):
                bias = self.tape.parameter("lm_head.bias", (shape.vocabulary_size,), self.recipe.weight_dtype)
        return causal_lm_output(hidden, weight, labels, self.recipe, bias)

    def transformer(self, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """GPTJModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        places = tape.new("arange", (1, input_ids.shape[1]), INT64, False) if position_ids is None else position_ids
        mask = mask_of(_embeds, recipe)
        state = [dropout(_embeds, recipe.embedding_dropout)]
        _outputs: list[Any] = []  # a block's attention weights live until the next block has returned
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, places), state, outputs=_outputs)
        return LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD: Any = GPTJ
