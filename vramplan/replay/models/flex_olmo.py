"""FlexOLMo, as transformers 5.23 computes it (models/flex_olmo/modeling_flex_olmo.py): OLMo 2 with the experts of OLMoE
in place of the feed-forward layer.
"""

from __future__ import annotations

from vramplan.replay.models import olmo2
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe
from vramplan.replay.models.olmoe import SparseMoeBlock as OlmoeMixture
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.recorder import Tape
from vramplan.values.model import ModelShape


class Block(olmo2.Block):
    """FlexOlmoDecoderLayer."""

    def feeds(self, tape: Tape, recipe: Recipe) -> OlmoeMixture:
        """The experts."""
        return OlmoeMixture(tape, recipe)


class FlexOlmo(olmo2.Olmo2):
    """FlexOlmoForCausalLM, with its loss."""

    selective = SELECTIVE
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    head_losses = HEAD_LOSSES
    float_block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with."""
        return GATED_EXPERTS


FORWARD = FlexOlmo
