"""Helium, as transformers 5.23 computes it (models/helium/modeling_helium.py): Llama with rotary positions that turn
neighbours, and norms that multiply by their weight in fp32."""

from __future__ import annotations

from vramplan.replay.models.glm import rotate_half
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.models.modules import RMSNorm as LlamaRMSNorm
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import to
from vramplan.replay.tensors import FP32, Tensor


class RMSNorm(LlamaRMSNorm):
    """HeliumRMSNorm."""

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        return to(mul(to(self.weight, FP32), hidden), dtype)


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: each cosine twice."""
    tape, shape = query.tape, (cos.shape[0], 1, *cos.shape[1:])
    cos = tape.new("repeat_interleave", shape, cos.dtype, cos.batched)
    sin = tape.new("repeat_interleave", shape, sin.dtype, sin.batched)
    query_embed = add(mul(query, cos), mul(rotate_half(query), sin))
    key_embed = add(mul(key, cos), mul(rotate_half(key), sin))
    return query_embed, key_embed


class Attention(LlamaAttention):
    """HeliumAttention."""

    turn = staticmethod(apply_rotary)


class Block(LlamaBlock):
    """HeliumDecoderLayer."""

    attention = Attention
    norm = RMSNorm


class Helium(Llama):
    """HeliumForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = Helium
