"""LLaVA-OneVision, the tiles of whose images go through a SigLIP and become tokens of a Qwen2, as transformers 5.23
computes it (models/llava_onevision/modeling_llava_onevision.py).

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.llava_next import LlavaNext
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.siglip import VisionModel
from vramplan.replay.models.stacks import split_at
from vramplan.replay.operators.multimodal import tokens_of_images
from vramplan.replay.tensors import Tensor


class LlavaOnevision(LlavaNext):
    """LlavaOnevisionForConditionalGeneration, with its loss."""

    vision: type = VisionModel
    block_lists = ("vision_tower.encoder.layers", "language_model.layers")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    equal_blocks = False  # there are two stacks of them
    may_miss_adapter = True

    def buffers(self) -> list[int]:
        """Bytes of the buffers: positions of the patches, int64, and the inverse frequencies, kept twice, in fp32."""
        return [8 * self.vision_tower.positions, *[4 * (self.recipe.shape.head_size // 2)] * 2]

    def placeholders(self, input_ids: Tensor) -> tuple[Tensor, ...]:
        """The same, and which tokens stand for videos: none, but the mask is made."""
        return tokens_of_images(input_ids), tokens_of_images(input_ids)

    def segments(self) -> tuple[tuple[Segment, ...], tuple[Segment, ...], tuple[Segment, ...]]:
        """Of the vision encoder, none that goes unused, of the text."""
        vision, text = split_at(self.recipe.segments, self.recipe.shape.stacks[0])
        return vision, (), text

    def image_features(
        self, pixel_values: Tensor, used: tuple[Segment, ...], unused: tuple[Segment, ...]
    ) -> tuple[Tensor, Tensor, Tensor, tuple[int, int]]:
        """LlavaOnevisionModel.get_image_features: what the last block gives, projected; its norm goes unused."""
        tape = self.tape
        with tape.building("vision_encoder"):
            selected, last, first = self.vision_tower.with_hidden_state(self.cut(pixel_values), used)
        dead = first, len(tape.nodes)
        return selected, last, self.packed(self.projector(selected)), dead


FORWARD = LlavaOnevision
