"""The block of models that normalise what attention and the feed-forward layer take, and what they give."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.llama import Block
from vramplan.replay.operators.elementwise import add
from vramplan.replay.tensors import Tensor

Norm = Callable[[Tensor], Tensor]


class SandwichBlock(Block):
    """Gemma2DecoderLayer, and Gemma 3's and GLM-4-0414's, whose norms have other names or another order."""

    norm_names = (
        *("input_layernorm", "post_attention_layernorm"),
        *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    )

    def __call__(self, hidden: Tensor) -> Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self.around()
        residual = hidden
        hidden = before_attention(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = after_attention(hidden)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = before_mlp(hidden)
        hidden = self.mlp(hidden)
        hidden = after_mlp(hidden)
        hidden = add(residual, hidden)
        return hidden

    def around(self) -> tuple[Norm, ...]:
        """The norms in the order in which they run: before and after attention, before and after the rest."""
        return self.norms
