"""Mistral 3, whose images Pixtral's encoder reads and whose text is a Mistral or a Ministral 3, as transformers 5.23
computes it (models/mistral3/modeling_mistral3.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.models.among_text import decoded, output_with_images, vision_width
from vramplan.replay.models.llama import Block as TextBlock
from vramplan.replay.models.ministral3 import Block as ScaledBlock
from vramplan.replay.models.modules import SELECTIVE_OP, Linear, Output, Recipe, RMSNorm
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.pixtral import VisionModel
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.elementwise import gelu
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.multimodal import masked_scatter, rejoined_rows, tokens_of_images
from vramplan.replay.operators.one_row import integers_of_each, join_images, split_images, squares_of_each
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor

# as the module has them, and so in the order in which optimizers step


class PatchMerger:
    """Mistral3PatchMerger: a square of patches becomes one row, image by image."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        merge, width = recipe.shape.vision_merge, vision_width(recipe)
        assert merge is not None
        self.tape, self.merge = tape, merge
        self.merging_layer = Linear(tape, "merging_layer", width * merge**2, width, recipe.weight_dtype, bias=False)

    def __call__(self, features: Tensor) -> Tensor:
        _sizes = integers_of_each(self.tape, "floor_divide", 2)
        _tokens = integers_of_each(self.tape, "mul", 1)
        _each = squares_of_each(split_images(features), self.merge)
        features = join_images(_each)
        features = self.merging_layer(features)
        return features


class Projector:
    """Mistral3MultiModalProjector."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        width, outputs, dtype = vision_width(recipe), recipe.shape.hidden_size, recipe.weight_dtype
        self.norm = RMSNorm(tape, "norm", width, dtype)
        with tape.building("patch_merger"):
            self.patch_merger = PatchMerger(tape, recipe)
        self.linear_1 = Linear(tape, "linear_1", width, outputs, dtype, bias=False)
        self.linear_2 = Linear(tape, "linear_2", outputs, outputs, dtype, bias=False)

    def __call__(self, features: Tensor) -> Tensor:
        features = self.norm(features)
        features = self.patch_merger(features)
        hidden = self.linear_1(features)
        hidden = gelu(hidden)
        hidden = self.linear_2(hidden)
        return hidden


class Mistral3:
    """Mistral3ForConditionalGeneration, with its loss."""

    block_lists = ("vision_tower.transformer.layers", "language_model.layers")
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    selective = SELECTIVE_OP
    head_losses = ("half-logits", "chunked:N", "fused")
    hands_groups_on = True  # `use_gqa_in_sdpa`

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"):
            self.vision_tower = VisionModel(tape, recipe)
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter("embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids with a placeholder for each square of patches, labels, an image in the dtype of the weights, and
        its height and width; with padding a mask."""
        recipe = self.recipe
        shape, tokens = recipe.shape, (recipe.sequence_length,)
        assert shape.channels is not None
        assert shape.patch_size is not None
        edge = isqrt(shape.image_patches) * shape.patch_size
        given = (
            ("input_ids", tokens, INT64),
            ("labels", tokens, INT64),
            ("pixel_values", (shape.channels, edge, edge), recipe.weight_dtype),
            ("image_sizes", (2,), INT64),
        )
        return (*given, ("attention_mask", tokens, INT64)) if recipe.padded else given

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies of images and of text, kept twice, in fp32."""
        shape = self.recipe.shape
        return [*[4 * (shape.vision_head_size // 2)] * 2, *[4 * (shape.head_size // 2)] * 2]

    def __call__(
        self, input_ids: Tensor, labels: Tensor, pixel_values: Tensor, sizes: Tensor, given: Tensor | None = None
    ) -> Output:
        """Mistral3ForConditionalGeneration.forward."""
        hidden, _images = self.model(input_ids, pixel_values)
        return output_with_images(self.tape, self.recipe, hidden, _images, labels, self.embed_tokens)

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """Mistral3Model.forward: the images' rows take the places of their tokens."""
        tape, recipe = self.tape, self.recipe
        vision, text = split_at(recipe.segments, recipe.shape.stacks[0])
        embeds = embedding(input_ids, self.embed_tokens)
        with tape.building("vision_encoder"):
            _last = self.vision_tower(pixel_values, vision)
        with tape.building("projector"):
            self.projector = Projector(tape, recipe)
            _projected = self.projector(view(_last, _last.shape[1:]))
        images = to(rejoined_rows(_projected), embeds.dtype)
        _mask = tokens_of_images(input_ids)
        embeds = masked_scatter(embeds, _mask, images)
        with tape.building("language_model"):
            kind = ScaledBlock if recipe.shape.scaled_queries else TextBlock
            return decoded(tape, recipe, embeds, text, kind), images


FORWARD = Mistral3
