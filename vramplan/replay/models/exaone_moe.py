"""K-EXAONE, as transformers 5.23 computes it (models/exaone_moe/modeling_exaone_moe.py): the attention of EXAONE 4,
norms before attention and feed-forward layer, and the experts of DeepSeek-V3 in all blocks but the first few.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import deepseek
from vramplan.replay.models.apertus import NormedHeads
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.modules import HEAD_LOSSES, RMSNorm, words
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.windows import are_alike, both_masks, has_window, masks_of, windowed_blocks
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class Block(deepseek.Block):
    """ExaoneMoeDecoderLayer."""

    attention = NormedHeads


class ExaoneMoe(deepseek.DeepSeek):
    """ExaoneMoeForCausalLM, with its loss."""

    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a window; each kind has its mask."""
        return has_window(shape, block)

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING."""
        return GATED_EXPERTS

    def turned(self) -> int:
        """Elements of each head that rotary positions turn: all, in the blocks that have them."""
        return self.recipe.shape.head_size

    def masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The masks of blocks without and with a window, of which those are made that blocks have."""
        windowed = windowed_blocks(self.recipe.shape)
        if not windowed:
            return mask_of(hidden, self.recipe), None
        if windowed == self.recipe.shape.layers:
            return masks_of(hidden, self.recipe)
        return both_masks(hidden, self.recipe)

    def model(self, input_ids: Tensor) -> Tensor:
        """ExaoneMoeModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        masks = self.masks(_embeds)
        hidden = _embeds
        rotary = self.rotary(hidden)
        dense = frozenset(experts_of(recipe).dense_layers)

        def block(i: int) -> Block:
            turned = None if i in shape.unrotated_layers else rotary
            return Block(tape, recipe, i in dense, masks[has_window(shape, i)], position_ids, turned)

        hidden = run_blocks(
            tape,
            recipe.segments,
            block,
            hidden,
            kind=lambda i: has_window(shape, i),
            alike=are_alike(recipe) and not shape.unrotated_layers,
            make_up=lambda i: i in dense,
        )
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD: Any = ExaoneMoe
