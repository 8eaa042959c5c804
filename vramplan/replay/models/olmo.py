"""OLMo 1, as transformers 5.23 computes it (models/olmo/modeling_olmo.py): Llama with layer norms that have no weights,
with rotary positions in fp32, and of some models queries, keys and values that are clipped in place.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.models.olmo2 import FloatBlock, Olmo2, apply_rotary
from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.normalised import layer_norm
from vramplan.replay.operators.piecewise import clamp_in_place
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, DType, Tensor


class PlainLayerNorm:
    """OlmoLayerNorm: in fp32, without weights."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        pass

    def __call__(self, hidden: Tensor) -> Tensor:
        return to(layer_norm(to(hidden, FP32), None, None), hidden.dtype)


class Attention(LlamaAttention):
    """OlmoAttention."""

    turn = staticmethod(apply_rotary)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each with its heads before its positions."""
        query, key, value = self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden)
        if self.recipe.shape.clipped_qkv:
            query, key, value = (clamp_in_place(one) for one in (query, key, value))
        query, key, value = (self.heads(one) for one in (query, key, value))
        return query, key, value


class PreNormBlock(FloatBlock):
    """A block that normalises before attention and before the feed-forward layer."""

    norm_names = ("input_layernorm", "post_attention_layernorm")

    def __call__(self, hidden: Tensor) -> Tensor:
        before_attention, before_mlp = self.norms
        residual = hidden
        hidden = before_attention(hidden)
        hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = before_mlp(hidden)
        hidden = self.mlp(hidden)
        hidden = add(residual, hidden)
        return hidden


class Block(PreNormBlock):
    """OlmoDecoderLayer."""

    attention = Attention
    norm = PlainLayerNorm


class Olmo(Olmo2):
    """OlmoForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    float_block = Block


FORWARD = Olmo
