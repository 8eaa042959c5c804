"""Gemma 3 as NeMo has it in megatron-core: a norm after attention and MLP too. Windows change no size.

Source: NVIDIA/NeMo 2.5.0rc0 (8cfedd72), nemo/collections/llm/gpt/model/gemma3.py (gemma3_layer_spec,
TERowParallelLinearLayerNorm).
"""

from __future__ import annotations

from vramplan.engines.megatron.layers import norm_of
from vramplan.engines.megatron.model import Block, Megatron
from vramplan.engines.megatron.tensor_parallel import bias_dropout_add
from vramplan.replay.models.modules import Recipe
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class SandwichBlock(Block):
    """TransformerLayer with a norm behind each row-parallel layer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, mask: Tensor | None, angles: Tensor | None, scratch: Tensor | None
    ) -> None:
        super().__init__(tape, recipe, mask, angles, scratch)
        self.post_attention_layernorm = norm_of(tape, recipe, "linear_proj.post_layernorm")
        self.post_mlp_layernorm = norm_of(tape, recipe, "linear_fc2.post_layernorm")

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.attend(hidden)
        residual = hidden
        assert self.pre_mlp_layernorm is not None
        _normed = self.pre_mlp_layernorm(hidden)
        out, bias = self.mlp(_normed)
        out = self.post_mlp_layernorm(out)
        return bias_dropout_add(out, bias, residual, self.p)

    def attend(self, hidden: Tensor) -> Tensor:
        """TransformerLayer._forward_attention."""
        residual = hidden
        _normed = self.input_layernorm(hidden)
        out, bias = self.self_attention(_normed, self.mask, self.angles, self.scratch)
        out = self.post_attention_layernorm(out)
        return bias_dropout_add(out, bias, residual, self.p)


class Sandwich(Megatron):
    """GPTModel of Gemma 3."""

    block: type[Block] = SandwichBlock
    untraced = True
    scales_embedding = True


FORWARD = Sandwich
