"""Qwen2.5-VL, as transformers 5.23 computes it (models/qwen2_5_vl/modeling_qwen2_5_vl.py): Qwen2-VL with a gated
feed-forward layer in its vision blocks, most of which look at windows of the image one by one.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt
from typing import Any

from vramplan.replay.models.among_text import vision_width
from vramplan.replay.models.blocks import GivenRotary, run_blocks
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, RMSNorm, Segment
from vramplan.replay.models.qwen2_vl import PatchMerger, Qwen2VL, VisionBlock, VisionModel
from vramplan.replay.operators.elementwise import mul
from vramplan.replay.operators.experts import index_rows
from vramplan.replay.operators.patches import conv_of_patches
from vramplan.replay.operators.ragged import ends_of_pieces
from vramplan.replay.operators.views import view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


class GatedVisionMlp:
    """Qwen2_5_VLMLP with biases."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        inner = shape.vision_intermediate_size
        assert inner is not None
        assert shape.vision_activation is not None
        self.gate_proj = Linear(tape, "gate_proj", width, inner, dtype, bias=True)
        self.up_proj = Linear(tape, "up_proj", width, inner, dtype, bias=True)
        self.down_proj = Linear(tape, "down_proj", inner, width, dtype, bias=True)
        self.act = ACTIVATIONS[shape.vision_activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(mul(self.act(self.gate_proj(x)), self.up_proj(x)))


class WindowedBlock(VisionBlock):
    """Qwen2_5_VLVisionBlock."""

    norm = RMSNorm
    feed_forward = GatedVisionMlp


class Merger(PatchMerger):
    """Qwen2_5_VLPatchMerger."""

    norm = RMSNorm


def windows_of(shape: ModelShape) -> tuple[int, ...]:
    """Patches of each window of an image: those at its right and lower edge may be smaller.

    Source: transformers 5.23, vision_utils.py, get_vision_window_index.
    """
    merge, window, patch = shape.vision_merge, shape.vision_window, shape.patch_size
    assert merge is not None
    assert window is not None
    assert patch is not None
    squares, edge = isqrt(shape.image_tokens), window // merge // patch
    sizes = [min(edge, squares - start) for start in range(0, squares, edge)]
    return tuple(height * width * merge**2 for height in sizes for width in sizes)


class WindowedVisionModel(VisionModel):
    """Qwen2_5_VisionTransformerPretrainedModel."""

    def __call__(self, pixel_values: Tensor, segments: tuple[Segment, ...]) -> tuple[Tensor, Tensor]:
        """The last hidden state, and the tokens that are made of it."""
        tape, recipe = self.tape, self.recipe
        shape, windows = recipe.shape, windows_of(recipe.shape)
        _position_ids = tape.new("cat", (pixel_values.shape[0], 2), INT64, True)
        ends = {True: ends_of_pieces(tape, 1), False: ends_of_pieces(tape, len(windows), "window_cumsum")}
        lengths = {True: (shape.image_patches,), False: windows}
        hidden = tape.looked_up(conv_of_patches(pixel_values, self.proj), module=(self.proj,))  # which it reads itself
        hidden = self.permuted(hidden)
        rotary = self.rotary(hidden)
        rotary = (self.permuted(rotary[0]), self.permuted(rotary[1]))
        first = [hidden]  # the loop over the blocks holds no more than the latest
        del hidden

        def is_full(i: int) -> bool:
            return i in shape.vision_full_layers

        def block(i: int) -> WindowedBlock:
            return WindowedBlock(tape, recipe, lengths[is_full(i)], ends[is_full(i)], own)

        given = GivenRotary(tape, segments, rotary)
        own = given.own
        with tape.building("vision_encoder"):
            hidden = run_blocks(tape, segments, block, first, kind=is_full, alike=False, handed=given.handed)
        with tape.building("projector"):
            self.merger = Merger(tape, recipe)
        merged = self.merger(hidden)
        merged = index_rows(merged, order_on_host(tape, merged.shape[0]))
        return hidden, merged

    def permuted(self, x: Tensor) -> Tensor:
        """permute_input_for_window_attn: the squares of patches window by window."""
        merge = self.recipe.shape.vision_merge
        assert merge is not None
        rows, width = x.shape
        squares = view(x, (rows // merge**2, merge**2, width))
        return view(index_rows(squares, order_on_host(self.tape, squares.shape[0])), (rows, width))


def order_on_host(tape: Tape, rows: int) -> Tensor:
    """Numbers of rows that lie on the host, which count nothing."""
    return tape.constant((rows,), INT64, True)


class Qwen25VL(Qwen2VL):
    """Qwen2_5_VLForConditionalGeneration, with its loss."""

    block_lists = ("visual.blocks", "language_model.layers")
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    head_losses = ("half-logits", "chunked:N", "fused")
    vision = WindowedVisionModel


FORWARD: Any = Qwen25VL
