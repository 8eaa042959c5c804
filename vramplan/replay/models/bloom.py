"""BLOOM, as transformers 5.23 computes it (models/bloom/modeling_bloom.py): ALiBi instead of positions, a fused
projection whose heads lie side by side, a GELU with a backward pass of its own, and no fused attention.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import causal_mask
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.modules import (
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
from vramplan.replay.operators.elementwise import add, bloom_gelu, dropout
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import baddbmm, matmul
from vramplan.replay.operators.views import select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import padded_mask
from vramplan.replay.tensors import FP32, INT32, INT64, Tensor


def dropout_add(x: Tensor, residual: Tensor, p: float) -> Tensor:
    """dropout_add."""
    out = dropout(x, p)
    out = add(residual, out)
    return out


class Attention:
    """BloomAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.query_key_value = Linear(tape, "self_attention.query_key_value", width, 3 * width, dtype, bias=True)
        self.dense = Linear(tape, "self_attention.dense", width, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, residual: Tensor, alibi: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads, size = recipe.shape.attention_heads, recipe.shape.head_size
        _fused = self.query_key_value(hidden)
        query, key, value = self.reshape(_fused)
        key, value = key.tape.role(KeyValues).kept(key, value)
        query = view(query, (batch * heads, length, size))
        key = transpose(view(key, (batch * heads, length, size)), -1, -2)
        value = view(value, (batch * heads, length, size))
        _scores = baddbmm(alibi, query, key)
        weights = view(_scores, (batch, heads, length, length))
        weights = add(weights, mask)
        probabilities = to(softmax(weights, FP32), query.dtype)
        probabilities = dropout(probabilities, recipe.attention_dropout)
        context = matmul(probabilities, view(value, (batch, heads, length, size)))  # bmm of the same, seen by heads
        context = view(transpose(context, 1, 2), (batch, length, width))
        output = self.dense(context)
        output = dropout_add(output, residual, recipe.hidden_dropout)
        return output, probabilities

    def reshape(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """BloomAttention._reshape."""
        batch, length, _ = fused.shape
        shape = self.recipe.shape
        fused = view(fused, (batch, length, shape.attention_heads, 3, shape.head_size))
        query = transpose(select(fused, 3), 1, 2)
        key = transpose(select(fused, 3), 1, 2)
        value = transpose(select(fused, 3), 1, 2)
        return query, key, value


class MLP:
    """BloomMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, inner, dtype = recipe.shape.hidden_size, recipe.shape.intermediate_size, recipe.weight_dtype
        self.p = recipe.hidden_dropout
        self.dense_h_to_4h = Linear(tape, "mlp.dense_h_to_4h", width, inner, dtype, bias=True)
        self.dense_4h_to_h = Linear(tape, "mlp.dense_4h_to_h", inner, width, dtype, bias=True)

    def __call__(self, hidden: Tensor, residual: Tensor) -> Tensor:
        hidden = bloom_gelu(self.dense_h_to_4h(hidden))
        intermediate = self.dense_4h_to_h(hidden)
        output = dropout_add(intermediate, residual, self.p)
        return output


class Block:
    """BloomBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, alibi: Tensor, mask: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.input_layernorm = LayerNorm(tape, "input_layernorm", width, dtype)
        self.self_attention = Attention(tape, recipe)
        self.post_attention_layernorm = LayerNorm(tape, "post_attention_layernorm", width, dtype)
        self.mlp = MLP(tape, recipe)
        self.alibi, self.mask = alibi, mask

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = self.input_layernorm(hidden)
        residual = hidden
        attention, weights = self.self_attention(normed, residual, self.alibi, self.mask)
        normed = self.post_attention_layernorm(attention)
        residual = attention
        output = self.mlp(normed, residual)
        return output, weights


class Bloom:
    """BloomForCausalLM, with its loss."""

    peaks_published = True
    masks_positions = False
    takes_padding = True
    takes_virtual_tokens = True
    takes_prefix = True
    block_lists = ("h",)
    selective = SELECTIVE_OP
    no_fused_attention = "its code has none"
    holds_outputs = True  # the loop holds a block's weights until the next one returns
    head_losses = HEAD_LOSSES

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter(
                "word_embeddings.weight", (shape.vocabulary_size, shape.hidden_size), dtype
            )
            self.word_embeddings_layernorm = LayerNorm(tape, "word_embeddings_layernorm", shape.hidden_size, dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module."""
        return []

    def __call__(self, input_ids: Tensor, labels: Tensor, _attention_mask: Tensor | None = None) -> Output:
        hidden = self.transformer(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.word_embeddings)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def transformer(self, input_ids: Tensor) -> Tensor:
        """BloomModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.word_embeddings)
        hidden = self.word_embeddings_layernorm(_embeds)
        if recipe.padded:
            alibi = padded_alibi(hidden, recipe.shape.attention_heads)
            mask = padded_mask(_embeds, causal=True, additive=True, windowed=False)
        else:
            _slopes = alibi_slopes(tape, recipe.shape.attention_heads)
            alibi = self.alibi(hidden)
            mask = causal_mask(_embeds)
        _outputs: list[Any] = []  # a block's attention weights live until the next block has returned
        state = [hidden]
        del hidden
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, alibi, mask), state, outputs=_outputs)
        hidden = LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def alibi(self, hidden: Tensor) -> Tensor:
        """The bias of BloomModel.forward: a slope for each head times the position of the key, for each sample."""
        tape, heads = self.tape, self.recipe.shape.attention_heads
        batch, length, _ = hidden.shape
        positions = tape.new("arange", (length,), INT64, False)
        alibi = tape.new("mul", (heads, 1, length), FP32, False)
        del positions
        repeated = tape.new("repeat", (batch * heads, 1, length), FP32, True)
        repeated = to(repeated, hidden.dtype)
        del alibi
        return repeated


def padded_alibi(hidden: Tensor, heads: int) -> Tensor:
    """build_alibi_tensor: a slope for each head times the position of the key among those that are no padding."""
    tape = hidden.tape
    batch, length, _ = hidden.shape
    _slopes = alibi_slopes(tape, heads)
    sums = tape.new("cumsum", (batch, length), INT64, True)
    numbers = tape.new("sub", (batch, length), INT64, True)
    del sums
    _positions = tape.new("mul", (batch, length), INT64, True)
    del numbers
    alibi = tape.new("mul", (batch, heads, length), FP32, True)
    return to(alibi.alias((batch * heads, 1, length), None, None), hidden.dtype)


def alibi_slopes(tape: Tape, heads: int) -> Tensor:
    """_get_alibi_slopes: fp32; where the heads are no power of two, two parts are concatenated."""
    closest = 1 << (heads.bit_length() - 1)
    base = tape.new("full", (), FP32, False)
    powers = tape.new("arange", (closest,), INT32, False)
    slopes = tape.new("pow", (closest,), FP32, False)
    if closest != heads:
        slopes = tape.new("cat", (heads,), FP32, False)
    del base, powers
    return slopes


FORWARD = Bloom
