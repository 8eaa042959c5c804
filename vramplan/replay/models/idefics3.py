"""Idefics3, whose images are cut into tiles and whose text is a Llama, as transformers 5.23 computes it
(models/idefics3/modeling_idefics3.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from math import isqrt

from vramplan.replay.models import clip, siglip
from vramplan.replay.models.among_text import decoded, output_with_images, vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.internvl import InternVL, squares
from vramplan.replay.models.modules import SELECTIVE_OP, LayerNorm, Linear, Output, Recipe, Segment
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.convolution import conv2d
from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.ends import embedding
from vramplan.replay.operators.image_tiles import places_of_patches, real_tiles, seen_patches, sum_of_truths, taken
from vramplan.replay.operators.multimodal import masked_scatter, rejoined_rows, tokens_of_images
from vramplan.replay.operators.views import to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, INT64, DType, Shape, Tensor


class VisionModel(siglip.VisionModel):
    """Idefics3VisionTransformer: SigLIP whose blocks have the order of CLIP's, and places for each tile."""

    def read(self, pixel_values: Tensor, seen: Tensor, segments: tuple[Segment, ...]) -> Tensor:
        """The last hidden state of tiles, of which these patches are seen."""
        tape, tower = self.tape, self.tower
        _hidden = tape.looked_up(self.placed(pixel_values, seen))
        tape.new("all", (), BOOL, False)
        _last = run_blocks(tape, segments, lambda i: clip.Block(tape, tower, None), _hidden)
        return LayerNorm(tape, "post_layernorm", tower.hidden_size, tower.dtype)(_last)

    def placed(self, pixel_values: Tensor, seen: Tensor) -> Tensor:
        """Idefics3VisionEmbeddings.forward."""
        _patches = conv2d(pixel_values, self.patch_embedding, self.patch_bias, stride=self.patch)
        batch, width, rows, columns = _patches.shape
        embeddings = transpose(view(_patches, (batch, width, rows * columns)), 1, 2)
        ids = places_of_patches(seen, _patches)
        return add(embeddings, embedding(ids, self.position_embedding))


class Connector:
    """Idefics3Connector: squares of patches are projected."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        merge, outputs, dtype = recipe.shape.vision_merge, recipe.shape.hidden_size, recipe.weight_dtype
        assert merge is not None
        self.merge, inputs = merge, vision_width(recipe) * merge**2
        self.proj = Linear(tape, "modality_projection.proj", inputs, outputs, dtype, bias=False)

    def __call__(self, features: Tensor) -> Tensor:
        features = squares(features, self.merge)
        features = self.proj(features)
        return features


class Idefics3(InternVL):
    """Idefics3ForConditionalGeneration, with its loss."""

    vision = VisionModel
    connector = Connector
    block_lists = ("vision_model.encoder.layers", "text_model.layers")
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    selective = SELECTIVE_OP
    head_losses = ("half-logits", "chunked:N", "fused")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    fills_images = True
    named_units = "the attention of each block of the images"

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """The same with all tiles of an image, and a mask of their pixels."""
        shape, edge = self.recipe.shape, self.recipe.image_size
        assert shape.vision_tiles is not None
        assert edge is not None
        given = super().inputs()
        return (*given[:3], ("pixel_attention_mask", (shape.vision_tiles, edge, edge), INT64), *given[3:])

    def __call__(  # type: ignore[override]
        self, input_ids: Tensor, labels: Tensor, pixel_values: Tensor, pixel_mask: Tensor, given: Tensor | None = None
    ) -> Output:
        """Idefics3ForConditionalGeneration.forward."""
        hidden, _returned = self.read(input_ids, pixel_values, pixel_mask)
        return output_with_images(self.tape, self.recipe, hidden, _returned, labels, self.embed_tokens)

    def read(
        self, input_ids: Tensor, pixel_values: Tensor, pixel_mask: Tensor
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """Idefics3Model.forward: the rows of the tiles take the places of their tokens. What the vision encoder gave
        lives until the text has been read."""
        tape, recipe = self.tape, self.recipe
        vision, text = split_at(recipe.segments, recipe.shape.stacks[0])
        embeds = embedding(input_ids, self.embed_tokens)
        _last, _features = self.image_features(pixel_values, pixel_mask, vision)
        tiles, tokens, width = _features.shape
        images = rejoined_rows(view(_features, (tiles * tokens, width)))
        images = to(images, recipe.weight_dtype)
        embeds, _mask = self.merged(input_ids, embeds, images)
        with tape.building("language_model"):
            hidden = decoded(tape, recipe, embeds, text)
        return hidden, self.returned(_last, _features, images)

    def returned(self, last: Tensor, features: Tensor, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        """What the output has of the images: their tokens."""
        return images

    def merged(self, input_ids: Tensor, embeds: Tensor, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Idefics3Model.inputs_merger; the mask goes with it."""
        mask = tokens_of_images(input_ids)
        return masked_scatter(embeds, mask, images), None

    def image_features(
        self, pixel_values: Tensor, pixel_mask: Tensor, segments: tuple[Segment, ...]
    ) -> tuple[Tensor, Tensor]:
        """Idefics3Model.get_image_features: tiles that are filled up are taken out of the others."""
        tape = self.tape
        batch, each, *image = pixel_values.shape
        tiles = batch * each
        pixels = view(pixel_values, (tiles, *image))
        _real = real_tiles(pixels)
        self.one_at_least()
        _numbers = sum_of_truths(tape, (tiles,), (batch,))
        pixels = taken(pixels)
        _pixel_mask = taken(view(pixel_mask, (tiles, *image[1:])))
        _seen = seen_patches(tape, tiles, isqrt(self.recipe.shape.image_patches))
        with tape.building("vision_encoder"):
            last = self.vision_tower.read(pixels, _seen, segments)
        return last, self.projector(last)

    def one_at_least(self) -> None:
        """Where no tile is real all are left out."""


FORWARD = Idefics3
