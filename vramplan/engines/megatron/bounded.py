"""Gemma 2 as NeMo has it in megatron-core: Gemma 3's blocks with a tanh that bounds scores and logits.

The attention that bounds scores is NeMo's own, and not fused. Windows change no size: masks are whole.
Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/llm/gpt/model/gemma2.py (gemma2_layer_spec,
Gemma2DotProductAttention, Gemma2OutputLayer).
"""

from __future__ import annotations

from vramplan.engines.megatron.attention import Attention
from vramplan.engines.megatron.layers import gathered
from vramplan.engines.megatron.sandwich import Sandwich, SandwichBlock
from vramplan.engines.megatron.tensor_parallel import parallel_linear
from vramplan.engines.megatron.vocabulary import summed_loss
from vramplan.replay.operators.elementwise import mul_scalar, tanh
from vramplan.replay.tensors import Tensor


def bounded(x: Tensor) -> Tensor:
    """`logit_softcapping`: a quotient, its tanh, and a product."""
    return mul_scalar(tanh(mul_scalar(x)))


class BoundedAttention(Attention):
    """SelfAttention with Gemma2DotProductAttention."""

    def softmax(self, scores: Tensor, mask: Tensor | None) -> Tensor:
        """The scores are bounded before the softmax."""
        return super().softmax(bounded(scores), mask)


class BoundedBlock(SandwichBlock):
    """TransformerLayer of gemma2_layer_spec."""

    attention = BoundedAttention


class Bounded(Sandwich):
    """GPTModel of Gemma 2."""

    block = BoundedBlock
    no_fused_attention = "NeMo bounds its scores with a tanh, in code of its own"
    no_flash_attention = no_fused_attention

    def loss(self, state: list[Tensor], labels: Tensor, counted: Tensor) -> Tensor:
        """With logits that are bounded."""
        state = [parallel_linear(state.pop(), self.head(), gathered=gathered(self.recipe))]
        state = [bounded(state.pop())]
        return summed_loss(self.losses(state, labels), counted)


FORWARD = Bounded
