"""OLMoE, as transformers 5.23 computes it (models/olmoe/modeling_olmoe.py): the blocks of Qwen3-MoE, with queries and
keys that are normalised over all heads together.
"""

from __future__ import annotations

from vramplan.replay.models.experts import has_separate_experts
from vramplan.replay.models.modules import HEAD_LOSSES
from vramplan.replay.models.olmo2 import WholeNorms
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.replay.models.qwen_moe import Block as QwenBlock
from vramplan.replay.models.qwen_moe import QwenMoe
from vramplan.replay.models.qwen_moe import SparseMoeBlock as QwenMixture
from vramplan.values.model import ModelShape


class SparseMoeBlock(QwenMixture):
    """OlmoeSparseMoeBlock."""

    modules = "OlmoeExperts"
    router_first = True


class Block(QwenBlock):
    """OlmoeDecoderLayer."""

    attention = WholeNorms
    mixture = SparseMoeBlock


class Olmoe(QwenMoe):
    """OlmoeForCausalLM, with its loss."""

    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    head_losses = HEAD_LOSSES
    separates_experts = True
    knows_old_code = True
    with_old_attention = ("olmoe",)
    block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING, by the pattern that Transformers converts it with."""
        return {} if has_separate_experts(shape) else GATED_EXPERTS


FORWARD = Olmoe
