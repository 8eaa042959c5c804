"""Granite 3 with experts, as transformers 5.23 computes it (models/granitemoe/modeling_granitemoe.py): Granite, whose
feed-forward layers are experts."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models import granite
from vramplan.replay.models.granitemoehybrid import MoE
from vramplan.replay.models.modules import HEAD_LOSSES_WITH_BIAS, SELECTIVE, Recipe
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Block(granite.Block):
    """GraniteMoeDecoderLayer."""

    def feeds(self, tape: Tape, recipe: Recipe) -> Callable[[Tensor], Tensor]:
        """The experts."""
        return MoE(tape, recipe)


class GraniteMoe(granite.Granite):
    """GraniteMoeForCausalLM, with its loss."""

    compiled_graphs = None  # no compiled step of it was traced
    selective = SELECTIVE
    head_losses = HEAD_LOSSES_WITH_BIAS
    no_head_losses = "its logits are divided by a number, which Liger has no loss for"
    scales_logits = True
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = GraniteMoe
