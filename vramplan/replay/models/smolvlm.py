"""SmolVLM, an Idefics3 that returns what its vision encoder gave, as transformers 5.23 computes it
(models/smolvlm/modeling_smolvlm.py)."""

from __future__ import annotations

from vramplan.replay.models.idefics3 import Idefics3
from vramplan.replay.models.modules import SELECTIVE_OP
from vramplan.replay.operators.multimodal import masked_scatter, tokens_of_images
from vramplan.replay.tensors import BOOL, Tensor


class SmolVLM(Idefics3):
    """SmolVLMForConditionalGeneration, with its loss."""

    block_lists = Idefics3.block_lists
    equal_blocks = False  # there are two stacks of them
    takes_padding = True
    selective = SELECTIVE_OP
    head_losses = ("half-logits", "chunked:N", "fused")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    fills_images = True

    def returned(self, last: Tensor, features: Tensor, images: Tensor) -> tuple[Tensor, ...]:
        """The last hidden state of the tiles, and what was projected of it."""
        return last, features

    def merged(self, input_ids: Tensor, embeds: Tensor, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """SmolVLMModel.get_placeholder_mask, and what it is for; the mask lives on."""
        mask = tokens_of_images(input_ids)
        return masked_scatter(embeds, mask, images), mask

    def one_at_least(self) -> None:
        """Where no tile is real the first one counts."""
        _any = self.tape.new("any", (), BOOL, False)
        _none = self.tape.new("bitwise_not", (), BOOL, False)


FORWARD = SmolVLM
