"""LLaVA, a vision encoder whose patches are tokens of a Llama, as transformers 5.23 computes it
(models/llava/modeling_llava.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.among_text import PARTS, decoded, output_with_images
from vramplan.replay.models.clip import VisionModel
from vramplan.replay.models.modules import (
    Linear,
    Output,
    Recipe,
    Segment,
)
from vramplan.replay.models.part_names import EMBEDDINGS
from vramplan.replay.models.stacks import split_at
from vramplan.replay.observers import Outer, Sharding
from vramplan.replay.operators.elementwise import gelu
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.multimodal import linear_of_a_view, masked_scatter, rejoin, tokens_of_images
from vramplan.replay.operators.views import after, to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor


class Projector:
    """LlavaMultiModalProjector."""

    def __init__(self, tape: Tape, inputs: int, outputs: int, dtype: DType) -> None:
        self.linear_1 = Linear(tape, "linear_1", inputs, outputs, dtype, bias=True)
        self.linear_2 = Linear(tape, "linear_2", outputs, outputs, dtype, bias=True)

    def __call__(self, features: Tensor) -> Tensor:
        hidden = self.widen(features)
        hidden = gelu(hidden)
        hidden = self.linear_2(hidden)
        return hidden

    def widen(self, features: Tensor) -> Tensor:
        """The first layer: autocast copies the view that the features are, else it stays one.

        So does DeepSpeed's function in the place of `F.linear`.
        """
        tape, weight, bias = features.tape, self.linear_1.weight, self.linear_1.bias
        is_copied = tape.autocast is not None or tape.role(Sharding).linear_is_function
        if is_copied or features.strides is None or bias is None or self.linear_1.adapter:
            return self.linear_1(features)
        with Outer(features, own=(weight, bias)):  # one module of two operators
            return linear_of_a_view(features, weight, bias)


class Llava:
    """LlavaForConditionalGeneration, with its loss."""

    block_lists: tuple[str, ...] = (
        "vision_tower.encoder.layers",
        "vision_tower.encoder.layers",
        "language_model.layers",
    )
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    equal_blocks = False  # there are several stacks of them
    may_miss_adapter = True
    vision: type = VisionModel
    parts: tuple[str, ...] = PARTS  # as the module has them, and so in the order in which optimizers step

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.tape, self.recipe = tape, recipe
        with tape.building("vision_encoder"):
            self.vision_tower = self.vision(tape, recipe)
        with tape.building("projector"):
            self.projector = Projector(tape, self.vision_tower.tower.hidden_size, shape.hidden_size, dtype)
        with tape.building("language_model"), tape.building(EMBEDDINGS):
            self.embed_tokens = tape.parameter("embed_tokens.weight", (shape.vocabulary_size, shape.hidden_size), dtype)

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """Token ids with a placeholder for each patch, an image in the dtype of the weights, and labels."""
        recipe = self.recipe
        assert recipe.image_size is not None
        assert recipe.shape.channels is not None
        image = (recipe.shape.channels, recipe.image_size, recipe.image_size)
        tokens = (recipe.sequence_length,)
        return ("input_ids", tokens, INT64), ("pixel_values", image, recipe.weight_dtype), ("labels", tokens, INT64)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of the patches, int64, and the inverse frequencies, kept twice, in fp32."""
        return [8 * self.vision_tower.embeddings.positions, *[4 * (self.recipe.shape.head_size // 2)] * 2]

    def __call__(self, input_ids: Tensor, pixel_values: Tensor, labels: Tensor) -> Output:
        """LlavaForConditionalGeneration.forward."""
        hidden, _images = self.model(input_ids, pixel_values)
        return output_with_images(self.tape, self.recipe, hidden, _images, labels, self.embed_tokens, self.parts)

    def model(self, input_ids: Tensor, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        """LlavaModel.forward: the images' rows take the places of their tokens.

        What the vision encoder returns lives until the language model is done, and with it the graph of its last block,
        whose result nobody uses.
        """
        used, unused, text = self.segments()
        embeds = embedding(input_ids, self.embed_tokens)
        _selected, _last, projected, dead = self.image_features(pixel_values, used, unused)
        images = to(self.joined(projected), embeds.dtype)
        _masks = self.placeholders(input_ids)
        embeds = masked_scatter(embeds, _masks[0], images)
        with self.tape.building("language_model"):
            hidden = decoded(self.tape, self.recipe, embeds, text)
        self.tape.abandon(*dead)
        return hidden, images

    def placeholders(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """Which tokens stand for images; the mask lives until the language model is done."""
        return (tokens_of_images(input_ids),)

    def packed(self, projected: Tensor) -> Tensor:
        """The tokens that are made of the images: all patches as they are."""
        return projected

    def joined(self, projected: Tensor) -> Tensor:
        """The tokens of all images in one row."""
        return rejoin(projected)

    def segments(self) -> tuple[tuple[Segment, ...], tuple[Segment, ...], tuple[Segment, ...]]:
        """Of the blocks up to the one that is used, of those after it, of the text."""
        used, unused, _ = self.recipe.shape.stacks
        first, rest = split_at(self.recipe.segments, used)
        return first, *split_at(rest, unused)

    def image_features(
        self, pixel_values: Tensor, used: tuple[Segment, ...], unused: tuple[Segment, ...]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
        """LlavaModel.get_image_features: the hidden state before the last block, without the class token, projected.

        It takes the place of what the vision encoder pooled, which goes with its graph.
        """
        tape = self.tape
        with tape.building("vision_encoder"):
            selected, last, _pooled, (first, pooling, end) = self.vision_tower.with_hidden_state(
                pixel_values, used, unused
            )
        projected = self.packed(self.projector(after(selected, 1, 1)))
        tape.abandon(pooling, end)
        return selected, last, projected, (first, pooling)


FORWARD = Llava
