"""MPT, as transformers 5.23 computes it (models/mpt/modeling_mpt.py): ALiBi instead of positions, no biases, and no
fused attention.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import GivenFloats, run_blocks
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SELECTIVE_OP,
    LayerNorm,
    Linear,
    Output,
    Recipe,
    output_embedding,
    words,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.elementwise import add, dropout, masked_fill, mul_scalar
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import contiguous, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT32, INT64, Tensor, contiguous_strides, normalised
from vramplan.values.model import ModelShape


def alibi_tensor(tape: Tape, heads: int, positions: int) -> Tensor:
    """build_mpt_alibi_tensor: a slope for each head times every position that there may be, in fp32."""
    _positions = tape.new("arange", (1, 1, 1, positions), INT32, False)
    slopes_of = 1 << (heads - 1).bit_length()
    base = to(tape.new("arange", (slopes_of,), INT64, False), FP32)
    base = mul_scalar(base)
    slopes = mul_scalar(tape.new("pow", (slopes_of,), FP32, False))
    if slopes_of != heads:
        slopes = tape.new("cat", (slopes_of,), FP32, False)
    alibi = tape.new("mul", (heads, 1, positions), FP32, False)
    del base, slopes
    return alibi


class Attention:
    """MptAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.Wqkv = Linear(tape, "Wqkv", width, 3 * width, dtype, bias=False)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=False)

    def __call__(self, hidden: Tensor, position_bias: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads = (batch, length, recipe.shape.attention_heads, recipe.shape.head_size)
        _mixed = self.Wqkv(hidden)
        query, key, value = split(_mixed, width)
        query = transpose(view(query, heads), 1, 2)
        key = transpose(view(key, heads), 1, 2)
        value = transpose(view(value, heads), 1, 2)
        key, value = key.tape.role(KeyValues).kept(key, value)
        scores = mul_scalar(matmul(query, transpose(key, -1, -2)))
        strides = contiguous_strides(position_bias.shape)
        shape = (recipe.shape.attention_heads, 1, length)
        position_bias = position_bias.alias(shape, normalised(shape, strides), None)
        scores = add(scores, position_bias)
        scores = masked_fill(scores, mask)
        weights = to(softmax(to(scores, FP32)), value.dtype)
        weights = dropout(weights, recipe.attention_dropout)
        context = matmul(weights, value)
        context = view(contiguous(transpose(context, 1, 2)), (batch, length, width))
        output = self.out_proj(context)
        return output, weights


class MLP:
    """MptMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.up_proj = Linear(tape, "up_proj", shape.hidden_size, shape.intermediate_size, dtype, bias=False)
        self.act = ACTIVATIONS[shape.activation]
        self.down_proj = Linear(tape, "down_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=False)

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        hidden = self.act(self.up_proj(hidden))
        _intermediate = self.down_proj(hidden)
        output = dropout(_intermediate, self.p)
        output = add(output, residual)
        return output


class Block:
    """MptBlock."""

    floats = ("position_bias",)  # FSDP2 casts it on its way to the block

    def __init__(self, tape: Tape, recipe: Recipe, position_bias: Tensor | None, mask: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.norm_1 = LayerNorm(tape, "norm_1", width, dtype, bias=False)
        self.attn = Attention(tape, recipe)
        self.norm_2 = LayerNorm(tape, "norm_2", width, dtype, bias=False)
        self.ffn = MLP(tape, recipe)
        self.p = recipe.hidden_dropout
        self.position_bias, self.mask = position_bias, mask

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        assert self.position_bias is not None
        normed = self.norm_1(hidden)
        residual = hidden
        _attention, weights = self.attn(normed, self.position_bias, self.mask)
        hidden = add(dropout(_attention, self.p), residual)
        normed = self.norm_2(hidden)
        residual = hidden
        output = self.ffn(normed, residual)
        return output, weights


class MPT:
    """MptForCausalLM, with its loss."""

    masks_positions = False
    takes_virtual_tokens = True
    takes_prefix = True
    block_lists = ("blocks",)
    selective = SELECTIVE_OP
    no_fused_attention = "its code has none"
    holds_outputs = True  # the loop holds a block's weights until the next one returns
    head_losses = HEAD_LOSSES
    bounded_positions = True

    @staticmethod
    def no_code_for(shape: ModelShape) -> tuple[str, str] | None:
        """Its code has a bias for positions, and no table of them."""
        if shape.positions != "learned":
            return None
        return "model.positions", "learned is not modelled as Transformers computes it"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor) -> Output:
        hidden = self.transformer(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.wte)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def transformer(self, input_ids: Tensor) -> Tensor:
        """MptModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.wte)
        hidden = _embeds
        alibi = alibi_tensor(tape, recipe.shape.attention_heads, recipe.shape.max_positions)
        mask = to(causal_mask(_embeds), BOOL)
        given = GivenFloats(tape, recipe.segments, Block.floats, [alibi])
        own = alibi if given.to_block else None
        _outputs: list[Any] = []  # a block's attention weights live until the next block has returned

        def block(_: int) -> Block:
            return Block(tape, recipe, own, mask)

        hidden = run_blocks(tape, recipe.segments, block, hidden, outputs=_outputs, handed=given.handed)
        hidden = LayerNorm(tape, "norm_f", recipe.shape.hidden_size, recipe.weight_dtype, bias=False)(hidden)
        return hidden


FORWARD = MPT
