"""dots.llm1, as transformers 5.23 computes it (models/dots1/modeling_dots1.py): attention with normalised queries and
keys, as that of Qwen3, and the experts of DeepSeek-V3.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models import deepseek, llama
from vramplan.replay.models.modules import HEAD_LOSSES
from vramplan.replay.models.part_names import GATED_EXPERTS
from vramplan.values.model import ModelShape


class Block(deepseek.Block):
    """Dots1DecoderLayer."""

    attention = llama.Attention


class Dots1(deepseek.DeepSeek):
    """Dots1ForCausalLM, with its loss."""

    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    block = Block

    @staticmethod
    def adapted_experts(shape: ModelShape) -> dict[str, str]:
        """PEFT 0.21.2, _MOE_TARGET_MODULE_MAPPING."""
        return GATED_EXPERTS

    def turned(self) -> int:
        """Elements of each head that rotary positions turn: all."""
        return self.recipe.shape.head_size


FORWARD: Any = Dots1
