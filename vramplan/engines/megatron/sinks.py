"""gpt-oss in megatron-core: a sink of each head beside the scores, and experts with biases.

Source: NVIDIA/Megatron-LM core 0.20.0 (d98e8a64), core/transformer/dot_product_attention.py, `softmax_type: learnable`;
core/transformer/moe/experts.py.
"""

from __future__ import annotations

from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.model import Block, Megatron
from vramplan.replay.models.modules import Recipe
from vramplan.replay.recorder import Tape


class SinkAttention(Attention):
    """SelfAttention whose softmax has one more number for each head."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        tape.parameter("core_attention.softmax_offset", (self.heads,), recipe.weight_dtype)


class SinkBlock(Block):
    """TransformerLayer of gpt-oss."""

    attention = SinkAttention


class Sinks(Megatron):
    """GPTModel of gpt-oss."""

    block = SinkBlock
    untraced = True


FORWARD = Sinks
