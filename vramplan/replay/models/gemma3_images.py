"""Gemma 3 with images, as transformers 5.23 computes it (models/gemma3/modeling_gemma3.py, and
models/siglip/modeling_siglip.py): what SigLIP says of an image is pooled to tokens of the text, which see all of their
own image.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from vramplan.replay.models.among_text import output_with_images
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gemma import TABLE, RMSNorm, scaled_embedding, scales
from vramplan.replay.models.gemma3 import Block as TextBlock
from vramplan.replay.models.llama import rotary_embedding
from vramplan.replay.models.modules import Output, Recipe, Segment
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.siglip import VisionModel
from vramplan.replay.models.stacks import split_at
from vramplan.replay.models.windows import has_window
from vramplan.replay.operators.multimodal import average_pool, masked_scatter, tokens_of_images
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import contiguous, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.padding import index_tensors
from vramplan.replay.tensors import BOOL, INT64, DType, Shape, Tensor
from vramplan.values.model import ModelShape

# as the module has them, and so in the order in which optimizers step


class Projector:
    """Gemma3MultiModalProjector."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        width = shape.vision_hidden_size
        assert width is not None
        self.edge, self.tokens = isqrt(shape.image_patches), isqrt(shape.image_tokens)
        self.weight = tape.parameter("mm_input_projection_weight", (width, shape.hidden_size), dtype)
        self.mm_soft_emb_norm = RMSNorm(tape, "mm_soft_emb_norm", width, dtype)

    def __call__(self, vision_outputs: Tensor) -> Tensor:
        batch, _, width = vision_outputs.shape
        _reshaped = transpose(vision_outputs, 1, 2)
        _reshaped = view(_reshaped, (batch, width, self.edge, self.edge))
        _reshaped = contiguous(_reshaped)
        _pooled = average_pool(_reshaped, self.edge // self.tokens)
        _pooled = transpose(view(_pooled, (batch, width, self.tokens**2)), 1, 2)
        _normed = self.mm_soft_emb_norm(_pooled)
        projected = linear(_normed, self.weight, transposed=True)
        return to(projected, vision_outputs.dtype)


class Gemma3Images:
    """Gemma3ForConditionalGeneration, with its loss."""

    projector: Callable[[Tape, Recipe], Callable[[Tensor], Tensor]] = Projector
    block_lists = ("vision_tower.encoder.layers", "language_model.layers")
    equal_blocks = False  # there are two stacks of them
    marks_images = True
    takes_padding = True
    head_losses = ("half-logits", "chunked:N", "fused")
    no_flash_attention = "the tokens of an image see each other, which takes a mask"
    package_flash = (
        "the flash-attn package takes no mask: the tokens of an image see what stands before them, and windows are an "
        "argument; composed, and never traced"
    )

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> object:
        """Whether a block of the text sees everything; those of the images are all alike."""
        images = shape.stacks[0]
        return None if block < images else not has_window(shape, block - images)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"):
            self.vision_tower = VisionModel(tape, recipe)
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter(TABLE, (shape.vocabulary_size, shape.hidden_size), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids with a placeholder for each token of the image, labels, an image in the dtype of the weights, and
        what kind each token is; with padding a mask."""
        recipe = self.recipe
        assert recipe.image_size is not None
        assert recipe.shape.channels is not None
        image = (recipe.shape.channels, recipe.image_size, recipe.image_size)
        tokens = (recipe.sequence_length,)
        given = (
            ("input_ids", tokens, INT64),
            ("labels", tokens, INT64),
            ("pixel_values", image, recipe.weight_dtype),
            ("token_type_ids", tokens, INT64),
        )
        return (*given, ("attention_mask", tokens, INT64)) if recipe.padded else given

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of the patches, int64, the scale of the embeddings, and the inverse
        frequencies of each kind of blocks, twice, in fp32."""
        shape = self.recipe.shape
        return [8 * shape.image_patches, *scales(self.tape), *[4 * (shape.head_size // 2)] * 2 * len(self.kinds())]

    def kinds(self) -> set[bool]:
        """Whether there are blocks that see everything, and blocks with a window."""
        return {not has_window(self.recipe.shape, i) for i in range(self.recipe.shape.layers)}

    def __call__(
        self, input_ids: Tensor, labels: Tensor, pixel_values: Tensor, kinds: Tensor, given: Tensor | None = None
    ) -> Output:
        """Gemma3ForConditionalGeneration.forward: its code bounds no logits."""
        hidden, _images = self.model(input_ids, pixel_values)
        return output_with_images(self.tape, self.recipe, hidden, _images, labels, self.embed_tokens)

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Gemma3Model.forward: the images' rows take the places of their tokens."""
        tape, recipe = self.tape, self.recipe
        vision, text = split_at(recipe.segments, recipe.shape.stacks[0])
        embeds = scaled_embedding(input_ids, self.embed_tokens)
        position_ids = self.given_positions(embeds)
        with tape.building("vision_encoder"):
            _last = self.vision_tower(pixel_values, vision)
        with tape.building("projector"):
            _projected = type(self).projector(tape, recipe)(_last)
        images = to(_projected, embeds.dtype)
        _mask = tokens_of_images(input_ids)
        embeds = masked_scatter(embeds, _mask, images)
        _block_ids = tape.new("where", input_ids.shape, INT64, True)
        masks: tuple[Tensor | None, ...] = (None, None)  # of the flash-attn package
        if recipe.attention != "flash":
            masks = self.masks(embeds)
        with tape.building("language_model"):
            return self.language_model(embeds, masks, position_ids, text), images

    def given_positions(self, embeds: Tensor) -> Tensor | None:
        """The places of the tokens, where the text is given them."""
        return None

    def masks(self, embeds: Tensor) -> tuple[Tensor, Tensor]:
        """Of the blocks without and with a window."""
        return self.mask(embeds, windowed=False), self.mask(embeds, windowed=True)

    def mask(self, embeds: Tensor, *, windowed: bool) -> Tensor:
        """create_masks_for_vision_model: causal, but for the tokens of one image; within the window or not."""
        tape = self.tape
        batch, length, _ = embeds.shape
        _indices = index_tensors(tape, batch, length, heads=True)
        shape = (batch, 1, length, length)
        mask = tape.new("bitwise_or", shape, BOOL, True)
        for _ in range(windowed + self.recipe.padded):
            mask = tape.new("bitwise_and", shape, BOOL, True)
        return tape.new("where", shape, embeds.dtype, True) if self.adds_mask() else mask

    def adds_mask(self) -> bool:
        """Whether the mask is added to scores; the kernels take one of booleans."""
        return self.recipe.attention == "eager"

    def language_model(
        self,
        embeds: Tensor,
        masks: tuple[Tensor | None, ...],
        position_ids: Tensor | None,
        segments: tuple[Segment, ...],
    ) -> Tensor:
        """Gemma3TextModel.forward, from embeddings."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        places = position_ids if position_ids is not None else tape.new("arange", (1, embeds.shape[1]), INT64, False)
        hidden = embeds
        rotary = {full: rotary_embedding(hidden, shape.head_size) for full in self.kinds()}

        def is_full(i: int) -> bool:
            return not has_window(shape, i)

        def block(i: int) -> TextBlock:
            return TextBlock(tape, recipe, masks[not is_full(i)], places, rotary[is_full(i)])

        hidden = run_blocks(tape, segments, block, hidden, kind=is_full, start=shape.stacks[0])
        return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD = Gemma3Images
