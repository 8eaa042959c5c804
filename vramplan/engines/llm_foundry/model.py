"""MPT as llm-foundry computes it (llmfoundry/models/mpt/modeling_mpt.py and llmfoundry/models/layers of 0.6): learned
positions and biases, or ALiBi without any (`no_bias`), layer norms in 16 bits, flash-attn on sequences without padding,
and its loss.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.engines.llm_foundry.operators import (
    flash_attention_of_rows,
    fused_cross_entropy,
    index_first_axis,
    low_precision_layer_norm,
    pad_input,
    padding_info,
    total,
)
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.modules import Linear, Output, Recipe, output_embedding
from vramplan.replay.models.part_names import EMBEDDINGS, NORMS
from vramplan.replay.operators.elementwise import add, div_by, dropout, gelu, masked_fill, mul_scalar
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.indexing import unsqueeze
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.transformer_engine import kept_by, te_linear
from vramplan.replay.operators.views import contiguous, split, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor
from vramplan.values.model import ModelShape

LAYERS_OF_A_BLOCK = 4  # linear ones
POSITIONS = ("learned", "alibi")
HEAD_MULTIPLE = 8  # of the elements of a head: flash-attn pads others


def is_learned(shape: ModelShape) -> bool:
    """Whether positions are learned; else they are ALiBi's, and no layer has a bias."""
    return shape.positions == POSITIONS[0]


def slopes_of(tape: Tape, heads: int) -> Tensor:
    """gen_slopes: a number for each head.

    Source: llmfoundry/models/layers/attention.py.
    """
    powers: Tensor | None = tape.new("arange", (heads,), FP32, False)
    slopes = tape.new("mul", (heads,), FP32, False)
    del powers
    powers = tape.new("pow", (heads,), FP32, False)
    del slopes
    slopes = tape.new("reciprocal", (heads,), FP32, False)
    del powers
    return slopes


class LowPrecisionLayerNorm:
    """LPLayerNorm."""

    def __init__(self, tape: Tape, name: str, recipe: Recipe) -> None:
        width = (recipe.shape.hidden_size,)
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", width, recipe.weight_dtype)
            self.bias = tape.parameter(f"{name}.bias", width, recipe.weight_dtype) if is_learned(recipe.shape) else None

    def __call__(self, x: Tensor) -> Tensor:
        return low_precision_layer_norm(x, self.weight, self.bias)


class TELinear(Linear):
    """te.Linear, which `fc_type: te` puts in place of every `nn.Linear` of a block."""

    def base(self, x: Tensor) -> Tensor:
        """The layer as it is in the model."""
        assert self.bias is not None
        return te_linear(x, self.weight, self.bias)


class Attention:
    """MultiheadAttention, with flash_attn_fn: queries, keys and values are copied row by row, and so is its result."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.recipe = recipe
        layer = TELinear if recipe.float8 else Linear
        bias = is_learned(recipe.shape)
        self.Wqkv = layer(tape, "attn.Wqkv", width, 3 * width, dtype, bias=bias)
        self.out_proj = layer(tape, "attn.out_proj", width, width, dtype, bias=bias)

    def __call__(self, x: Tensor, padding: tuple[Tensor, ...]) -> Tensor:
        batch, length, width = x.shape
        if self.recipe.attention == "eager":
            _qkv = self.Wqkv(x)
            return self.out_proj(self.torch(*split(_qkv, width)))
        places_q, ends_q, places_k, ends_k, places_v = padding
        _qkv = self.Wqkv(x)
        query, key, value = split(_qkv, width)
        context = self.flash(query, key, value, (places_q, places_k, places_v), (ends_q, ends_k))
        context = view(context, (batch, length, width))
        return self.out_proj(context)

    def torch(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """scaled_multihead_dot_product_attention, of `attn_impl: torch`: each block makes its causal mask."""
        shape, tape = self.recipe.shape, query.tape
        batch, length, width = query.shape
        heads = (batch, length, shape.attention_heads, shape.head_size)
        q, k, v = (transpose(view(x, heads), 1, 2) for x in (query, key, value))
        weights = mul_scalar(matmul(q, transpose(k, 2, 3)))
        if not is_learned(shape):
            weights = add(weights, tape.constant((1, shape.attention_heads, 1, length), FP32, False))
        _ones = tape.new("new_ones", (length, length), FP32, False)
        _lower = tape.new("tril", (length, length), FP32, False)
        del _ones
        _kept = tape.new("to", (length, length), BOOL, False)
        del _lower
        mask = tape.new("bitwise_not", (length, length), BOOL, False)
        del _kept
        weights = softmax(masked_fill(weights, mask))
        out = matmul(to(weights, v.dtype), v)
        return view(contiguous(transpose(out, 1, 2)), (batch, length, width))

    def flash(
        self, query: Tensor, key: Tensor, value: Tensor, places: tuple[Tensor, ...], ends: tuple[Tensor, Tensor]
    ) -> Tensor:
        """flash_attn_fn, whose locals go when it returns."""
        shape = self.recipe.shape
        batch, length, width = query.shape
        flat, heads = (batch * length, width), (batch * length, shape.attention_heads, shape.head_size)
        pairs = zip((query, key, value), places, strict=True)
        rows = [view(index_first_axis(view(x, flat), at), heads) for x, at in pairs]
        _unpadded = flash_attention_of_rows(rows[0], rows[1], rows[2], length, ends)
        return pad_input(view(_unpadded, flat), places[0])


class Block:
    """MPTBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, padding: tuple[Tensor, ...]) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.padding, self.p = padding, recipe.hidden_dropout
        self.norm_1 = LowPrecisionLayerNorm(tape, "norm_1", recipe)
        self.attn = Attention(tape, recipe)
        self.norm_2 = LowPrecisionLayerNorm(tape, "norm_2", recipe)
        layer = TELinear if recipe.float8 else Linear
        bias = is_learned(shape)
        self.up_proj = layer(tape, "ffn.up_proj", shape.hidden_size, shape.intermediate_size, dtype, bias=bias)
        self.down_proj = layer(tape, "ffn.down_proj", shape.intermediate_size, shape.hidden_size, dtype, bias=bias)

    def __call__(self, x: Tensor) -> Tensor:
        _a = self.norm_1(x)
        _b = self.attn(_a, self.padding)
        x = add(x, dropout(_b, self.p))
        _m = self.norm_2(x)
        _n = self.down_proj(gelu(self.up_proj(_m)))
        return add(x, dropout(_n, self.p))


class MPT:
    """ComposerMPTCausalLM, with its loss."""

    block_returns = None  # not known: its blocks return caches and weights beside the hidden state

    shards_by_blocks = True
    calls_flash = True
    prefetches_after = True  # Composer asks FSDP for BACKWARD_POST

    @staticmethod
    def stands_for(shape: ModelShape) -> bool:
        """Whether it is an MPT with learned positions or ALiBi, and heads as flash-attn takes them."""
        return shape.task == "lm" and shape.positions in POSITIONS and shape.head_size % HEAD_MULTIPLE == 0

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building(EMBEDDINGS):
            self.wte = tape.parameter("wte.weight", (shape.vocabulary_size, shape.hidden_size), dtype)
            self.wpe: Parameter | None = None
            if is_learned(shape):
                self.wpe = tape.parameter("wpe.weight", (shape.max_positions, shape.hidden_size), dtype)

    def buffers(self) -> list[int]:
        """Bytes of the buffers of the module; without flash-attn there is the bias of ALiBi, of all positions."""
        shape = self.recipe.shape
        own = (
            []
            if is_learned(shape) or self.recipe.attention != "eager"
            else [shape.attention_heads * shape.max_positions]
        )
        if not self.recipe.float8:
            return [one * FP32.itemsize for one in own]
        return [*(one * FP32.itemsize for one in own), *kept_by(LAYERS_OF_A_BLOCK * shape.layers)]

    def __call__(self, input_ids: Tensor, labels: Tensor) -> Output:
        recipe = self.recipe
        hidden = self.transformer(input_ids)
        logits = linear(hidden, output_embedding(self.tape, recipe, self.wte))
        return Output(self.loss(logits, labels), logits)

    def transformer(self, input_ids: Tensor) -> Tensor:
        """MPTModel.forward."""
        tape, recipe = self.tape, self.recipe
        batch, length = input_ids.shape
        x = embedding(input_ids, self.wte)
        if self.wpe is not None:
            _pos = unsqueeze(tape.new("arange", (length,), INT64, False), 0)
            x = add(x, embedding(_pos, self.wpe))
        x = dropout(x, recipe.embedding_dropout)
        if self.wpe is None and recipe.attention != "eager":  # which the functions of flash-attn keep
            tape.held.append(slopes_of(tape, recipe.shape.attention_heads))
        _padding = () if recipe.attention == "eager" else padding_info(tape, batch, length)
        state = [x]
        del x
        x = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, _padding), state)
        return LowPrecisionLayerNorm(tape, "norm_f", recipe)(x)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """ComposerMPTCausalLM.loss: the kernel of flash-attn over all logits, labels shifted."""
        tape = self.tape
        batch, length, words = logits.shape
        targets = view(tape.new("roll", (batch, length), INT64, True), (batch * length,))
        _losses, _logged = fused_cross_entropy(view(logits, (batch * length, words)), targets)
        summed = total(_losses)
        counted = tape.new("ne", (batch * length,), BOOL, True)
        count = tape.new("sum", (), INT64, False)
        del counted
        return div_by(summed, count)


FORWARD = MPT
