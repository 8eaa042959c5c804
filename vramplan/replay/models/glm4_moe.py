"""GLM-4.5 and its kin, as transformers 5.23 computes them (models/glm4_moe/modeling_glm4_moe.py): attention of grouped
queries that turns a part of each head, and the experts of DeepSeek-V3.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import deepseek, llama, neox
from vramplan.replay.models.modules import HEAD_LOSSES
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.values.model import ModelShape


class Attention(llama.Attention):
    """Glm4MoeAttention."""

    turn = staticmethod(neox.apply_rotary)


class Block(deepseek.Block):
    """Glm4MoeDecoderLayer."""

    attention = Attention


class Glm4Moe(deepseek.DeepSeek):
    """Glm4MoeForCausalLM, with its loss."""

    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING."""
        return GATED_EXPERTS

    def turned(self) -> int:
        """Elements of each head that rotary positions turn."""
        shape = self.recipe.shape
        return int(shape.head_size * shape.partial_rotary_factor)


FORWARD: Any = Glm4Moe
