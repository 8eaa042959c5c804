"""PaliGemma, as transformers 5.23 computes it (models/paligemma/modeling_paligemma.py): the patches of SigLIP are
projected to tokens of a Gemma or, of PaliGemma 2, a Gemma 2, and with the text before the answer they see each other.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models import gemma, gemma2
from vramplan.replay.models.among_text import vision_width
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gemma import RMSNorm
from vramplan.replay.models.gemma3_images import Gemma3Images
from vramplan.replay.models.llama import rotary_embedding
from vramplan.replay.models.modules import Linear, Recipe, Segment
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import INT64, Tensor
from vramplan.values.model import ModelShape


class Projector:
    """PaliGemmaMultiModalProjector."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.linear = Linear(
            tape, "linear", vision_width(recipe), recipe.shape.hidden_size, recipe.weight_dtype, bias=True
        )

    def __call__(self, features: Tensor) -> Tensor:
        hidden = self.linear(features)
        return hidden


class PaliGemma(Gemma3Images):
    """PaliGemmaForConditionalGeneration, with its loss."""

    projector = Projector
    block_lists = ("vision_tower.encoder.layers", "language_model.layers")
    hands_groups_on = True  # of the text: `use_gqa_in_sdpa`
    takes_padding = True
    head_losses = ("half-logits", "chunked:N", "fused")
    no_flash_attention = "what stands before the answer sees each other, which takes a mask"
    package_flash = "the flash-attn package takes no mask: all tokens see each other; composed, and never traced"

    @staticmethod
    def scores_text(shape: ModelShape) -> bool:
        """Whether the text's code makes scores whatever attention the images have: that of a Gemma 2."""
        return shape.text_type == "gemma2"

    @staticmethod
    def full_blocks(shape: ModelShape) -> int:
        """All blocks of a Gemma see everything, and every second one of a Gemma 2."""
        return shape.layers if shape.sliding_window is None else shape.layers // 2

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> object:
        """Which of the two masks a block of a Gemma 2 holds; the blocks of a Gemma are all alike, and of the images."""
        images = shape.stacks[0]
        return (block - images) % 2 if block >= images and PaliGemma.scores_text(shape) else None

    def kinds(self) -> set[bool]:
        """All blocks of the text turn by the same positions."""
        return {True}

    def given_positions(self, embeds: Tensor) -> Tensor:
        """The places of the tokens, from 1: one sum after the other."""
        tape, length = self.tape, embeds.shape[1]
        places = tape.new("arange", (length,), INT64, False)
        places = tape.new("add", (length,), INT64, False)
        places = tape.new("add", (1, length), INT64, False)
        return places

    def masks(self, embeds: Tensor) -> tuple[Tensor, Tensor]:
        """One mask, and where blocks have a window another one of those."""
        mask = self.mask(embeds, windowed=False)
        return mask, mask if self.recipe.shape.sliding_window is None else self.mask(embeds, windowed=True)

    def adds_mask(self) -> bool:
        """Whether the mask is added to scores."""
        return super().adds_mask() or self.scores_text(self.recipe.shape)

    def language_model(
        self,
        embeds: Tensor,
        masks: tuple[Tensor | None, ...],
        position_ids: Tensor | None,
        segments: tuple[Segment, ...],
    ) -> Tensor:
        """GemmaModel.forward and Gemma2Model.forward, from embeddings."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        kind = gemma2.Block if self.scores_text(shape) else gemma.Block
        assert position_ids is not None
        hidden = embeds
        rotary = rotary_embedding(hidden, shape.head_size)

        def block(i: int) -> gemma.Block | gemma2.Block:
            return kind(tape, recipe, masks[1 - i % 2], position_ids, rotary)

        hidden = run_blocks(
            tape,
            segments,
            block,
            hidden,
            kind=lambda i: self.block_kind(shape, i + shape.stacks[0]),
            start=shape.stacks[0],
        )
        return RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)


FORWARD = PaliGemma
