"""Pixtral's vision encoder, as transformers 5.23 computes it (models/pixtral/modeling_pixtral.py): the patches of all
images of a micro-batch are one row, which rotary positions turn by height and width and a mask keeps apart.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.models.among_text import vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.llama import Rotary, apply_rotary
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, RMSNorm, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.observers import Outer
from vramplan.replay.operators.attention import efficient
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add, dropout, mul, mul_scalar
from vramplan.replay.operators.masked_attention import unfused_attention
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.one_row import (
    RowMask,
    for_each,
    for_kernel,
    for_operators,
    row_mask,
    rows_of_images,
    whole,
)
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import autocast_half, contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, INT64, Tensor

MASK = ("kept", "passed")  # attributes of a block that have the mask


class Attention:
    """PixtralAttention: of all images at once."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        dtype = recipe.weight_dtype
        self.recipe, self.width = recipe, width
        self.k_proj = Linear(tape, "k_proj", width, width, dtype, bias=False)
        self.v_proj = Linear(tape, "v_proj", width, width, dtype, bias=False)
        self.q_proj = Linear(tape, "q_proj", width, width, dtype, bias=False)
        self.o_proj = Linear(tape, "o_proj", width, width, dtype, bias=False)

    def __call__(self, hidden: Tensor, mask: RowMask, rotary: Rotary) -> tuple[Tensor, Tensor | None]:
        heads = self.recipe.shape.vision_attention_heads
        assert heads is not None
        _, patches, width = hidden.shape
        of_heads = (1, patches, heads, width // heads)
        query = self.q_proj(hidden)
        key = self.k_proj(hidden)
        value = self.v_proj(hidden)
        query = transpose(view(query, of_heads), 1, 2)
        key = transpose(view(key, of_heads), 1, 2)
        value = transpose(view(value, of_heads), 1, 2)
        query, key = apply_rotary(query, key, *rotary)
        weights = None
        if self.recipe.attention == "eager":
            output, weights = eager_attention(query, key, value, mask, self.recipe.vision_attention_dropout)
        else:
            output = self.by_operator(query, key, value, mask)
            output = contiguous(transpose(output, 1, 2))
        output = contiguous(view(output, (1, patches, width)))
        output = self.o_proj(output)
        return output, weights

    def by_operator(self, query: Tensor, key: Tensor, value: Tensor, mask: RowMask) -> Tensor:
        """`F.scaled_dot_product_attention`, which autocast casts for: its kernel, or plain operators."""
        query, key, value = autocast_half(query), autocast_half(key), autocast_half(value)
        if self.recipe.attention != "math":
            return efficient(query, key, value, *for_kernel(mask))
        added = for_operators(mask)
        return unfused_attention(query, key, value, whole(added), self.recipe.vision_attention_dropout, squares=True)


def eager_attention(query: Tensor, key: Tensor, value: Tensor, mask: RowMask, p: float) -> tuple[Tensor, Tensor]:
    """eager_attention_forward: softmax in fp32, cast back to the dtype of the query."""
    weights = mul_scalar(matmul(query, transpose(key, -1, -2), squares=True))
    weights = add(weights, whole(mask))
    weights = to(softmax(weights, FP32), query.dtype)
    weights = dropout(weights, p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


class GatedMlp:
    """PixtralMLP."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        inner = shape.vision_intermediate_size
        assert inner is not None
        assert shape.vision_activation is not None
        self.gate_proj = Linear(tape, "gate_proj", width, inner, dtype, bias=False)
        self.up_proj = Linear(tape, "up_proj", width, inner, dtype, bias=False)
        self.down_proj = Linear(tape, "down_proj", inner, width, dtype, bias=False)
        self.act = ACTIVATIONS[shape.vision_activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class Block:
    """PixtralAttentionLayer: pre-norm."""

    def __init__(self, tape: Tape, recipe: Recipe, rotary: Rotary, mask: RowMask) -> None:
        width, dtype = vision_width(recipe), recipe.weight_dtype
        self.attention_norm = RMSNorm(tape, "attention_norm", width, dtype)
        self.feed_forward = GatedMlp(tape, recipe, width)
        self.attention = Attention(tape, recipe, width)
        self.ffn_norm = RMSNorm(tape, "ffn_norm", width, dtype)
        self.rotary = rotary
        self.kept: Tensor | None = mask[0]  # the mask is an argument, which a checkpoint keeps
        self.passed: Tensor | None = mask[1]

    def __call__(self, hidden: Tensor) -> Tensor:
        assert self.kept is not None
        assert self.passed is not None
        residual = hidden
        hidden = self.attention_norm(hidden)
        hidden, _weights = self.attention(hidden, (self.kept, self.passed), self.rotary)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.ffn_norm(hidden)
        hidden = self.feed_forward(hidden)
        hidden = add(residual, hidden)
        return hidden


class VisionModel:
    """PixtralVisionModel."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        assert shape.patch_size is not None
        assert shape.channels is not None
        self.tape, self.recipe, self.patch = tape, recipe, shape.patch_size
        width = vision_width(recipe)
        with tape.building(EMBEDDINGS):
            patch = (width, shape.channels, self.patch, self.patch)
            self.patch_conv = tape.parameter("patch_conv.weight", patch, dtype)
        self.ln_pre = RMSNorm(tape, "ln_pre", width, dtype)

    def __call__(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        """The last hidden state [1, N, H]; the code asks for the element type of the patches' weight."""
        with Outer(pixel_values, read=(self.patch_conv,)):
            return self.forward(pixel_values, segments)

    def forward(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        """PixtralVisionModel.forward."""
        tape, recipe = self.tape, self.recipe
        _patch_embeds = conv2d(pixel_values, self.patch_conv, stride=self.patch)
        _patch_embeds = tape.looked_up(_patch_embeds, module=(self.patch_conv,))
        row = rows_of_images(_patch_embeds)
        hidden = self.ln_pre(view(row, (1, *row.shape)))
        del row
        _position_ids, _last_of_loop = self.positions(hidden.shape[1])
        rotary = self.rotary(hidden)
        mask = row_mask(tape, recipe.shape.image_patches, hidden.dtype)
        handed = dict(zip(MASK, mask, strict=True))
        return run_blocks(tape, segments, lambda i: Block(tape, recipe, rotary, mask), hidden, handed=handed)

    def positions(self, patches: int) -> tuple[Tensor, list[Tensor]]:
        """Row and column of each patch, and what the loop over the images leaves: the numbers of the last one."""
        tape = self.tape
        edge = isqrt(patches // tape.batch)
        numbers = [tape.new("arange", (edge,), INT64, False) for _ in range(2)]
        _each = for_each(tape, "stack", (patches, 2), INT64, INT64.itemsize * 2 * (patches // tape.batch))
        return tape.new("cat", (patches, 2), INT64, True), numbers

    def rotary(self, hidden: Tensor) -> Rotary:
        """PixtralVisionRotaryEmbedding.forward: cosines and sines [1, N, d], of height and width."""
        tape, rows, size = self.tape, hidden.shape[1], self.recipe.shape.vision_head_size
        both = (rows, 2, size // 2)
        positions = tape.new("to", (rows, 2, 1), FP32, True)
        _frequencies = tape.new("mul", both, FP32, True)
        del positions
        cos = mul_scalar(tape.new("cos", both, FP32, True))
        sin = mul_scalar(tape.new("sin", both, FP32, True))
        cos = self.recomposed(cos, size)
        sin = self.recomposed(sin, size)
        cos, sin = to(cos, hidden.dtype), to(sin, hidden.dtype)
        return cos, sin

    def recomposed(self, values: Tensor, size: int) -> Tensor:
        """recomposition_frequencies: both axes side by side, twice."""
        rows = values.shape[0]
        _both = self.tape.new("cat", (rows, size // 2), FP32, True)
        return self.tape.new("cat", (1, rows, size), FP32, True)
