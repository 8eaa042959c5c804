"""LFM2, as transformers 5.23 computes it (models/lfm2/modeling_lfm2.py): short convolutions between two gates in the
place of most attention.

It is as PyTorch's own convolution computes it, which is what runs where causal-conv1d is not installed. Names that
start with an underscore are locals of that code which outlive their use; they keep their tensor alive here as they do
there.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Linear, Recipe, RMSNorm
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.observers import KeyValues, Outer
from vramplan.replay.operators.delta_rule import conv_of_channels, times_mask
from vramplan.replay.operators.elementwise import add, mul, silu
from vramplan.replay.operators.indexing import split_with_sizes
from vramplan.replay.operators.views import contiguous, narrow, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape, ShortConvolution


def convolution_of(shape: ModelShape) -> ShortConvolution:
    """The short convolutions of a model that has some."""
    assert shape.short_convolution is not None
    return shape.short_convolution


class Attention(LlamaAttention):
    """Lfm2Attention: its last projection and its norms have names of their own."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, query = shape.hidden_size, shape.attention_heads * shape.head_size
        key = shape.key_value_heads * shape.head_size
        self.recipe = recipe._replace(attention_dropout=0.0)  # whatever the configuration says
        self.q_proj = Linear(tape, "q_proj", hidden, query, dtype, bias=False)
        self.k_proj = Linear(tape, "k_proj", hidden, key, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", hidden, key, dtype, bias=False)
        self.o_proj = Linear(tape, "out_proj", query, hidden, dtype, bias=False)
        self.q_norm = RMSNorm(tape, "q_layernorm", shape.head_size, dtype)
        self.k_norm = RMSNorm(tape, "k_layernorm", shape.head_size, dtype)


class ShortConv:
    """Lfm2ShortConv."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        convolution = convolution_of(recipe.shape)
        self.width, self.kernel, bias = width, convolution.kernel, convolution.bias
        self.conv = tape.parameter("conv.weight", (width, 1, self.kernel), dtype)
        self.conv_bias = tape.parameter("conv.bias", (width,), dtype) if bias else None
        self.in_proj = Linear(tape, "in_proj", width, 3 * width, dtype, bias=bias)
        self.out_proj = Linear(tape, "out_proj", width, width, dtype, bias=bias)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        read = (self.conv,) if self.conv_bias is None else (self.conv, self.conv_bias)
        with Outer(hidden, read=read):
            return self.mixed(hidden, mask)

    def mixed(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """The module's own forward."""
        if mask is not None:  # apply_mask_to_padding_states
            hidden = times_mask(hidden, mask.alias((*mask.shape, 1), None, None))
        _projected = self.in_proj(hidden)
        parts = split_with_sizes(_projected, (self.width,) * 3)
        before, after, x = (transpose(one, 1, 2) for one in parts)
        hidden = mul(before, x)
        hidden.tape.role(KeyValues).convolves(hidden, self.kernel)
        hidden = self.convolved(hidden)
        y = mul(after, hidden)
        y = contiguous(transpose(y, 1, 2))
        y = self.out_proj(y)
        return y

    def convolved(self, x: Tensor) -> Tensor:
        """causal_conv1d_fn: each channel with the tokens before it, which are padded and cut off."""
        length, dtype = x.shape[2], x.dtype
        weight = view(self.conv, (self.width, self.kernel))
        x = to(x, weight.dtype)
        weight = view(weight, (self.width, 1, self.kernel))
        return to(narrow(conv_of_channels(x, weight, self.kernel - 1, self.conv_bias), -1, length), dtype)


class MLP:
    """Lfm2MLP: gated."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        hidden, inner, dtype = recipe.shape.hidden_size, recipe.shape.intermediate_size, recipe.weight_dtype
        self.w1 = Linear(tape, "w1", hidden, inner, dtype, bias=False)
        self.w3 = Linear(tape, "w3", hidden, inner, dtype, bias=False)
        self.w2 = Linear(tape, "w2", inner, hidden, dtype, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.w2(mul(silu(self.w1(x)), self.w3(x)))


class Block:
    """Lfm2DecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.conv = ShortConv(tape, recipe) if i in convolution_of(recipe.shape).layers else None
        if self.conv is None:
            self.self_attn = Attention(tape, recipe)
        self.feed_forward = self.feedforward(tape, recipe)
        self.operator_norm = RMSNorm(tape, "operator_norm", width, dtype)
        self.ffn_norm = RMSNorm(tape, "ffn_norm", width, dtype)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids

    def feedforward(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """What is behind the convolution or the attention."""
        return MLP(tape, recipe)

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        _weights: Tensor | None = None
        if self.conv is None:
            hidden, _weights = self.self_attn(self.operator_norm(hidden), self.mask, self.position_ids, self.rotary)
        else:
            hidden = self.conv(self.operator_norm(hidden), self.mask)
        hidden = add(hidden, residual)
        hidden = add(hidden, self.feed_forward(self.ffn_norm(hidden)))
        return hidden


class Lfm2(Recurrent):
    """Lfm2ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    block: type[Block] = Block

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a convolution; each kind has its mask."""
        return block in convolution_of(shape).layers

    @staticmethod
    def make_up(shape: ModelShape, block: int) -> object:
        """What the modules of a block are: which mixer it has."""
        return block in convolution_of(shape).layers

    def model(self, input_ids: Tensor) -> Tensor:
        """Lfm2Model.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = self.embedded(input_ids)
        position_ids = self.position_ids(input_ids)
        masks = mask_of(_embeds, recipe), recurrent_mask(self.padding)
        hidden = _embeds
        rotary = self.rotary(hidden)

        def kind(i: int) -> bool:
            return self.block_kind(shape, i)

        def made(i: int) -> object:
            return self.make_up(shape, i)

        def block(i: int) -> Block:
            return self.block(tape, recipe, i, masks[kind(i)], position_ids, rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=made)
        hidden = RMSNorm(tape, "embedding_norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Lfm2
