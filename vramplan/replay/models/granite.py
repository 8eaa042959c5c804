"""Granite 3, as transformers 5.23 computes it (models/granite/modeling_granite.py): Llama, whose embeddings, residuals
and logits are multiplied by numbers."""

from __future__ import annotations

from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES_WITH_BIAS, SELECTIVE
from vramplan.replay.operators.elementwise import add, mul_scalar
from vramplan.replay.tensors import Tensor


class Block(LlamaBlock):
    """GraniteDecoderLayer."""

    def joined(self, residual: Tensor, hidden: Tensor) -> Tensor:
        """The sum with what came in, after `residual_multiplier`."""
        return add(residual, mul_scalar(hidden))


class Granite(Llama):
    """GraniteForCausalLM, with its loss."""

    knows_old_code = True
    has_tensor_plan = True
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

    def embedded(self, input_ids: Tensor) -> Tensor:
        """The embeddings of the tokens, times `embedding_multiplier`."""
        return mul_scalar(super().embedded(input_ids))


FORWARD = Granite
