"""Falcon, as transformers 5.23 computes it (models/falcon/modeling_falcon.py): one key-value head (7B), groups of heads
with a projection of their own (40B, 180B, 11B), or ALiBi and blocks one after the other (RW).

Its code makes a mask whatever the attention is, which the flash kernel does not take; and it hands a single key-value
head on as it is, which no fused kernel takes.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import rope
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.bloom import alibi_slopes, dropout_add
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.heads import causal_lm_output
from vramplan.replay.models.llama import Rotary, apply_rotary
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES,
    SCORED,
    SELECTIVE_OP,
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
from vramplan.replay.observers import KeyValues
from vramplan.replay.operators.attention import scaled_dot_product
from vramplan.replay.operators.elementwise import add, add_in_place, dropout
from vramplan.replay.operators.indexing import index_one, scale_in_place
from vramplan.replay.operators.masked_attention import broadcast_matmul
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.plain_products import times_transposed
from vramplan.replay.operators.views import expand, narrow, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BF16, BOOL, FP32, INT64, Tensor, normalised
from vramplan.values.model import ModelShape


def is_multi_query(shape: ModelShape) -> bool:
    """Whether there is a single key-value head that is handed on as it is."""
    return shape.key_value_heads == 1 and not shape.new_decoder_architecture


class FalconLinear(Linear):
    """FalconLinear: a product and a sum of its own, each rounded.

    Transformers takes no subclass of nn.Linear for a linear layer to quantize, as it did before 5.5
    (integrations/bitsandbytes.py).
    """

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int, *, bias: bool) -> None:
        self.quantizes = recipe.old_code.quantizes_own_layers
        super().__init__(tape, name, inputs, outputs, recipe.weight_dtype, bias=bias)

    def base(self, x: Tensor) -> Tensor:
        """The layer as it is in the model."""
        if self.converted is not None:
            return self.converted(self, x)
        hidden = times_transposed(x, self.weight)
        return hidden if self.bias is None else add(hidden, self.bias)


class Attention:
    """FalconAttention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        width, bias = shape.hidden_size, shape.qkv_bias
        self.recipe = recipe
        fused = width + 2 * shape.key_value_heads * shape.head_size
        self.query_key_value = FalconLinear(tape, recipe, "query_key_value", width, fused, bias=bias)
        self.dense = FalconLinear(tape, recipe, "dense", width, width, bias=bias)

    def __call__(
        self, hidden: Tensor, alibi: Tensor | None, mask: Tensor, rotary: Rotary
    ) -> tuple[Tensor, Tensor | None]:
        recipe = self.recipe
        batch, length, width = hidden.shape
        heads, size = recipe.shape.attention_heads, recipe.shape.head_size
        _fused = self.query_key_value(hidden)
        query, key, value = self.split_heads(_fused)
        kv_heads = key.shape[2]
        query = view(transpose(query, 1, 2), (batch, heads, length, size))
        key = view(transpose(key, 1, 2), (batch, kv_heads, length, size))
        value = view(transpose(value, 1, 2), (batch, kv_heads, length, size))
        if alibi is None:
            query, key = apply_rotary(query, key, *rotary)
        key, value = key.tape.role(KeyValues).kept(key, value)
        weights = None
        p = 0.0 if alibi is None else recipe.attention_dropout
        if recipe.attention != "eager":
            output = scaled_dot_product(query, key, value, recipe.attention, p, mask)
        elif alibi is None:
            scores = broadcast_matmul(query, transpose(key, -1, -2))
            scores = scale_in_place(scores)
            weights = softmax(add(scores, mask), hidden.dtype)
            del scores
            output = broadcast_matmul(weights, value)
        else:
            _product = broadcast_matmul(query, transpose(key, -1, -2))
            _scores = to(_product, FP32)
            logits = add(_scores, alibi)
            logits = scale_in_place(logits)
            weights = softmax(add(logits, mask), hidden.dtype)
            weights = dropout(weights, p)
            output = broadcast_matmul(weights, value)
        output = view(transpose(output, 1, 2), (batch, length, width))
        output = self.dense(output)
        return output, weights

    def split_heads(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """FalconAttention._split_heads."""
        shape = self.recipe.shape
        batch, length, _ = fused.shape
        heads, groups, size = shape.attention_heads, shape.key_value_heads, shape.head_size
        if shape.new_decoder_architecture:
            qkv = view(fused, (batch, length, groups, heads // groups + 2, size))
            query = narrow(qkv, 3, heads // groups)
            key, value = index_one(qkv, 3), index_one(qkv, 3)
            key, value = expand(key, query.shape), expand(value, query.shape)
            flat = (batch, length, heads, size)
            return view(query, flat), view(key, flat), view(value, flat)
        if is_multi_query(shape):
            fused = view(fused, (batch, length, heads + 2, size))
            return narrow(fused, 2, heads), index_one(fused, 2), index_one(fused, 2)
        fused = view(fused, (batch, length, heads, 3, size))
        return select(fused, 3), select(fused, 3), select(fused, 3)


class MLP:
    """FalconMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        width, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.dense_h_to_4h = FalconLinear(tape, recipe, "dense_h_to_4h", width, inner, bias=bias)
        self.dense_4h_to_h = FalconLinear(tape, recipe, "dense_4h_to_h", inner, width, bias=bias)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, x: Tensor) -> Tensor:
        x = self.act(self.dense_h_to_4h(x))
        x = self.dense_4h_to_h(x)
        return x


class Block:
    """FalconDecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, alibi: Tensor | None, mask: Tensor, position_ids: Tensor, rotary: Rotary
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        self.self_attention = Attention(tape, recipe)
        self.mlp = in_tiles(MLP, tape, recipe)
        apart = recipe.shape.parallel_residual and recipe.shape.parallel_norms == 2
        two = not recipe.shape.parallel_residual or apart
        first, second = ("ln_attn", "ln_mlp") if apart else ("input_layernorm", "post_attention_layernorm")
        self.input_layernorm = LayerNorm(tape, first, width, dtype)
        self.second_layernorm = LayerNorm(tape, second, width, dtype) if two else None
        self.alibi, self.mask, self.rotary = alibi, mask, rotary
        self._position_ids = position_ids  # an unused argument, which a checkpoint keeps nevertheless

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        recipe, second = self.recipe, self.second_layernorm
        residual = hidden
        normed = self.input_layernorm(hidden)
        mlp_normed = normed
        if recipe.shape.parallel_residual and second is not None:
            mlp_normed = second(hidden)
        attention, weights = self.self_attention(normed, self.alibi, self.mask, self.rotary)
        if not recipe.shape.parallel_residual:
            assert second is not None
            residual = dropout_add(attention, residual, recipe.attention_dropout)
            mlp_normed = second(residual)
        output = self.mlp(mlp_normed)
        if recipe.shape.parallel_residual:
            output = add_in_place(output, attention)
        result = dropout_add(output, residual, recipe.hidden_dropout)
        return result, weights


class Falcon(Positions):
    """FalconForCausalLM, with its loss."""

    block_lists = ("h",)
    own_linear = "FalconLinear"
    selective = SELECTIVE_OP
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    holds_outputs = True  # the loop holds a block's weights until the next one returns
    no_float8 = "whose code writes over what Float8Linear gives (autograd forbids it)"

    @staticmethod
    def divides_scores_in_place(shape: ModelShape) -> bool:
        """Whether the product of queries and keys is divided in place (modeling_falcon.py, FalconAttention.forward)."""
        return shape.positions != "alibi"

    @staticmethod
    def only_kernel(shape: ModelShape) -> tuple[str, str]:
        """The kernel that is left of `scaled_dot_product_attention`, and why."""
        if is_multi_query(shape) and shape.attention_heads > 1:
            return "math", "falcon's code hands its one key-value head on as it is, which no fused kernel takes"
        return "efficient", "falcon's code always makes a mask, which flash does not take"

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape = recipe.shape
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.word_embeddings = tape.parameter(
                "word_embeddings.weight", (shape.vocabulary_size, shape.hidden_size), recipe.weight_dtype
            )

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32, with ALiBi too; before 5.0 once."""
        return [4 * (self.recipe.shape.head_size // 2)] * (1 if self.recipe.old_code.one_table else 2)

    def kept(self) -> list[int]:
        """Bytes that scaled rotary positions keep from one step to the next."""
        return rope.kept(self.recipe, self.recipe.shape.head_size)

    def __call__(self, input_ids: Tensor, labels: Tensor, given: Tensor | None = None) -> Output:
        self.take(given)
        hidden = self.transformer(input_ids)
        weight = output_embedding(self.tape, self.recipe, self.word_embeddings)
        return causal_lm_output(hidden, weight, labels, self.recipe)

    def transformer(self, input_ids: Tensor) -> Tensor:
        """FalconModel.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.word_embeddings)
        alibi: Tensor | None = None
        if recipe.shape.positions == "alibi":
            if not recipe.padded and recipe.loss not in SCORED:  # whose inputs come with a mask of ones
                _ones = tape.new("ones", input_ids.shape, INT64, True)
            alibi = alibi_of(_embeds, recipe.shape.attention_heads)
        position_ids = self.position_ids(input_ids)
        mask = mask_of(_embeds, recipe)
        if mask is None:
            mask = boolean_mask(_embeds)
        if alibi is not None:
            mask = alibi_mask(alibi, mask)
        hidden = _embeds
        rotary = self.cosines_and_sines(hidden, recipe.shape.head_size)
        _outputs: list[Any] = []  # a block's attention weights live until the next block has returned

        def block(_: int) -> Block:
            return Block(tape, recipe, alibi, mask, position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden, outputs=_outputs)
        hidden = LayerNorm(tape, "ln_f", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


def boolean_mask(hidden: Tensor) -> Tensor:
    """The boolean mask of fused attention [B, 1, S, S], a view of one [1, 1, S, S] (masking_utils.py, sdpa_mask)."""
    batch, length, _ = hidden.shape
    mask = hidden.tape.new("le", (1, 1, length, length), BOOL, False)
    shape = (batch, 1, length, length)
    return mask.alias(shape, normalised(shape, (0, length * length, length, 1)), None)


def alibi_of(hidden: Tensor, heads: int) -> Tensor:
    """build_alibi_tensor (modeling_falcon.py), seen as [B, a, 1, S]: slopes times positions in bf16, then cast."""
    tape = hidden.tape
    batch, length, _ = hidden.shape
    slopes = alibi_slopes(tape, heads)
    positions = tape.new("mul", (batch, 1, length), INT64, True)
    halves = tape.new("to", slopes.shape, BF16, False)
    alibi = tape.new("mul", (batch, heads, length), BF16, True)
    del slopes, positions, halves
    return view(to(alibi, hidden.dtype), (batch, heads, 1, length))


def alibi_mask(alibi: Tensor, mask: Tensor) -> Tensor:
    """The bias of each head where the mask lets through, as wide as the scores (FalconModel.forward in
    modeling_falcon.py): in the dtype of the embeddings."""
    tape = alibi.tape
    batch, heads, _, length = alibi.shape
    if mask.dtype is BOOL:
        mask = tape.new("where", mask.shape, alibi.dtype, True)
    scaled = tape.like("div", alibi)
    hidden = tape.new("lt", mask.shape, BOOL, True)
    wide = tape.new("masked_fill", (batch, heads, length, length), alibi.dtype, True)
    del scaled, hidden
    return wide


FORWARD = Falcon
