"""Qwen3-VL, as transformers 5.23 computes it (models/qwen3_vl/modeling_qwen3_vl.py, and with experts
models/qwen3_vl_moe/modeling_qwen3_vl_moe.py): Qwen2-VL with learned positions that are interpolated to each image, a
Qwen3 for the text, and DeepStack: what some vision blocks say is added to what
the first blocks of the text say of the image's tokens.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.among_text import vision_width
from vramplan.replay.models.blocks import GivenRotary, run_blocks
from vramplan.replay.models.experts import experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Block as TextBlock
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import LayerNorm, Linear, Recipe, RMSNorm, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.qwen2_vl import (
    AXES,
    Qwen2VL,
    VisionBlock,
    VisionMlp,
    VisionModel,
    rows_of,
)
from vramplan.replay.models.qwen_moe import Block as BlockOfExperts
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.elementwise import add, gelu, mul
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.experts import sum_middle
from vramplan.replay.operators.multimodal import in_places, masked_scatter, of_places, rejoined_rows
from vramplan.replay.operators.patches import conv_of_patches
from vramplan.replay.operators.ragged import ends_of_pieces
from vramplan.replay.operators.views import clone, to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor
from vramplan.values.model import ModelShape

TAPS = 4  # learned positions that one patch is interpolated between


class PlainMlp(VisionMlp):
    """Qwen3VLVisionMLP."""

    names = ("linear_fc1", "linear_fc2")


class PlainBlock(VisionBlock):
    """Qwen3VLVisionBlock."""

    feed_forward = PlainMlp


class Merger:
    """Qwen3VLVisionPatchMerger: a square of patches becomes a token; it is normalised as patches or as a square."""

    def __init__(self, tape: Tape, recipe: Recipe, *, of_squares: bool) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        assert shape.vision_merge is not None
        self.width, self.of_squares = width * shape.vision_merge**2, of_squares
        self.norm = LayerNorm(tape, "norm", self.width if of_squares else width, dtype)
        self.linear_fc1 = Linear(tape, "linear_fc1", self.width, self.width, dtype, bias=True)
        self.linear_fc2 = Linear(tape, "linear_fc2", self.width, shape.hidden_size, dtype, bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        squares = (rows * width // self.width, self.width)
        x = view(self.norm(view(x, squares) if self.of_squares else x), squares)
        return self.linear_fc2(gelu(self.linear_fc1(x)))


class DeepStackVisionModel(VisionModel):
    """Qwen3VLVisionModel."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, width, dtype = recipe.shape, vision_width(recipe), recipe.weight_dtype
        assert shape.vision_positions is not None
        super().__init__(tape, recipe)
        with tape.building("vision_encoder"), tape.building(EMBEDDINGS):
            self.bias = tape.parameter("patch_embed.proj.bias", (width,), dtype)
            self.pos_embed = tape.parameter("pos_embed.weight", (shape.vision_positions, width), dtype)

    def features(self, pixel_values: Tensor, stacks: list[tuple[Segment, ...]]) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The last hidden state, the tokens that are made of it, and those of the blocks of DeepStack."""
        tape, recipe = self.tape, self.recipe
        rows = pixel_values.shape[0]
        _interp_indices = tape.new("view", (rows, TAPS), INT64, True)
        _interp_weights = tape.new("view", (rows, TAPS), FP32, True)
        _position_ids = tape.new("cat", (rows, 2), INT64, True)
        cu_seqlens = ends_of_pieces(tape, 1)
        hidden = conv_of_patches(pixel_values, self.proj, self.bias)  # which nobody asks for a gradient
        _pos_embeds = self.positions(_interp_indices, _interp_weights)
        hidden = add(hidden, to(_pos_embeds, hidden.dtype))
        given_rotary = GivenRotary(tape, [one for each in stacks for one in each], self.rotary(hidden))
        own = given_rotary.own
        lengths = (recipe.shape.image_patches,)
        with tape.building("projector"):
            self.plain_merger = Merger(tape, recipe, of_squares=False)
            mergers = [self.deepstack_merger(i) for i, _ in enumerate(recipe.shape.vision_deepstack_layers)]
        given = [hidden]  # the loop over the blocks holds no more than the latest
        del hidden
        features: list[Tensor] = []
        start = 0
        for i, segments in enumerate(stacks):
            with tape.building("vision_encoder"):
                hidden = run_blocks(
                    tape,
                    segments,
                    lambda i: PlainBlock(tape, recipe, lengths, cu_seqlens, own),
                    given,
                    start=start,
                    numbered_from=start,
                    handed=given_rotary.handed,
                )
            start += sum(one.times * one.blocks for one in segments)
            if i < len(mergers):
                features.append(mergers[i](hidden))
                given = [hidden]
                del hidden
        merged = self.plain_merger(hidden)
        return hidden, merged, features

    def deepstack_merger(self, number: int) -> Merger:
        """One of `deepstack_merger_list`."""
        name = f"deepstack_merger_list.{number}"
        with self.tape.building(name):
            made = Merger(self.tape, self.recipe, of_squares=True)
        vars(self)[name] = made
        return made

    def positions(self, indices: Tensor, weights: Tensor) -> Tensor:
        """Of each patch the weighted sum of the learned positions around it."""
        weights = weights.alias((*weights.shape, 1), None, None)
        return sum_middle(mul(embedding(indices, self.pos_embed, returned=False), weights))


class Qwen3VL(Qwen2VL):
    """Qwen3VLForConditionalGeneration and Qwen3VLMoeForConditionalGeneration, with their loss."""

    equal_blocks = False  # there are several stacks of them
    takes_padding = True
    head_losses = ("half-logits", "chunked:N", "fused")
    vision = DeepStackVisionModel
    visual: DeepStackVisionModel

    @staticmethod
    def lists_of(shape: ModelShape) -> tuple[str, ...]:
        """The list of blocks that each stack is a part of."""
        several = len(shape.vision_deepstack_layers) + 1
        return ("visual.blocks",) * several + ("language_model.layers",) * several

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        """Qwen3VLModel.forward: the images' rows take the places of their tokens."""
        tape, recipe = self.tape, self.recipe
        stacks, rest = [], recipe.segments
        for layers in recipe.shape.stacks:
            first, rest = split_at(rest, layers)
            stacks.append(first)
        several = len(stacks) // 2
        embeds = embedding(input_ids, self.embed_tokens)
        _last, _merged, _features = self.visual.features(rows_of(pixel_values), stacks[:several])
        images = rejoined_rows(_merged)
        images = to(images, embeds.dtype)
        mask = tape.new("eq", input_ids.shape, BOOL, True)
        _videos = tape.new("eq", input_ids.shape, BOOL, True)
        embeds = masked_scatter(embeds, mask, images)
        deepstack = [rejoined_rows(one) for one in _features]
        _position_ids = tape.new("zeros", (AXES, *input_ids.shape), INT64, True)
        with tape.building("language_model"):
            return self.deep_language_model(embeds, stacks[several:], mask, deepstack)

    def deep_language_model(
        self, embeds: Tensor, stacks: list[tuple[Segment, ...]], places: Tensor, deepstack: list[Tensor]
    ) -> Tensor:
        """Qwen3VLTextModel.forward, from embeddings."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        mask = mask_of(embeds, recipe)
        hidden = embeds
        rotary = self.rotary(hidden)
        start, images = 0, sum(shape.stacks[: len(stacks)])
        for i, segments in enumerate(stacks):
            hidden = run_blocks(
                tape,
                segments,
                self.text_block(start, mask, rotary),
                hidden,
                make_up=None if shape.experts is None else self.is_dense(start),
                start=images + start,
                numbered_from=start,
            )
            start += sum(one.times * one.blocks for one in segments)
            if i < len(deepstack):
                hidden = with_features(hidden, places, deepstack[i])
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden

    def text_block(self, start: int, mask: Tensor | None, rotary: Rotary) -> Callable[[int], Any]:
        """Qwen3VLTextDecoderLayer; Qwen3VLMoeTextDecoderLayer where there are experts."""
        tape, recipe = self.tape, self.recipe
        if recipe.shape.experts is None:
            return lambda i: TextBlock(tape, recipe, mask, None, rotary)
        is_dense = self.is_dense(start)
        return lambda i: BlockOfExperts(tape, recipe, is_dense(i), mask, None, rotary)

    def is_dense(self, start: int) -> Callable[[int], bool]:
        """Whether a block, counted from one on, has no experts."""
        dense = frozenset(experts_of(self.recipe).dense_layers)
        return lambda i: start + i in dense

    def recomposed(self, values: Tensor, size: int) -> Tensor:
        """recomposition_frequencies: the axes in turn, written in place, and all of it twice."""
        _, batch, length, _ = values.shape
        return self.tape.new("cat", (batch, length, size), FP32, True)


def with_features(hidden: Tensor, places: Tensor, features: Tensor) -> Tensor:
    """Qwen3VLTextModel._deepstack_process."""
    features = to(features, hidden.dtype)
    hidden = clone(hidden)
    local = add(of_places(hidden, places, features.shape[0]), features)
    return in_places(hidden, places, local)


FORWARD: Any = Qwen3VL
