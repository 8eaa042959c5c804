"""LLaVA-NeXT, whose images are cut into tiles beside the whole image and whose text is a Llama, a Mistral or a Qwen2,
as transformers 5.23 computes it (models/llava_next/modeling_llava_next.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.among_text import PARTS
from vramplan.replay.models.llava import Llava
from vramplan.replay.models.modules import Output, Recipe, Segment
from vramplan.replay.operators.one_row import join_images, split_images
from vramplan.replay.operators.packed_tiles import pack_tiles
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, DType, Shape, Tensor

NEWLINE = "image_newline"


class LlavaNext(Llava):
    """LlavaNextForConditionalGeneration, with its loss."""

    block_lists = Llava.block_lists
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    equal_blocks = False  # there are several stacks of them
    may_miss_adapter = True
    parts = (NEWLINE, *PARTS)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        with tape.building(NEWLINE):
            self.image_newline = tape.parameter(NEWLINE, (recipe.shape.hidden_size,), recipe.weight_dtype)

    @property
    def tiles(self) -> int:
        """The tiles of an image, of which the first is the whole of it."""
        tiles = self.recipe.shape.vision_tiles
        assert tiles is not None
        return tiles

    def inputs(self) -> tuple[tuple[str, Shape, DType], ...]:
        """The same with the tiles of an image, and its height and width."""
        ids, (name, image, dtype), labels = super().inputs()
        return ids, (name, (self.tiles, *image), dtype), ("image_sizes", (2,), INT64), labels

    def __call__(self, input_ids: Tensor, pixel_values: Tensor, sizes: Tensor, labels: Tensor) -> Output:  # type: ignore[override]
        """LlavaNextForConditionalGeneration.forward."""
        return super().__call__(input_ids, pixel_values, labels)

    def image_features(
        self, pixel_values: Tensor, used: tuple[Segment, ...], unused: tuple[Segment, ...]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
        """LlavaNextModel.get_image_features: the same of all tiles."""
        return super().image_features(self.cut(pixel_values), used, unused)

    def cut(self, pixel_values: Tensor) -> Tensor:
        """The tiles of all images behind each other, new."""
        batch, tiles, *image = pixel_values.shape
        return self.tape.new("cat", (batch * tiles, *image), pixel_values.dtype, True)

    def packed(self, projected: Tensor) -> Tensor:
        """LlavaNextModel.pack_image_features."""
        return pack_tiles(split_images(projected), self.image_newline, self.tiles)

    def joined(self, projected: Tensor) -> Tensor:
        """The tokens of all images in one row, new."""
        return join_images(projected)


FORWARD = LlavaNext
