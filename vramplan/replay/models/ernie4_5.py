"""ERNIE 4.5, as transformers 5.23 computes it (models/ernie4_5/modeling_ernie4_5.py): Llama with rotary positions in
fp32 that turn neighbours."""

from __future__ import annotations

from vramplan.replay.models.glm import rotate_half
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Rotary
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm
from vramplan.replay.models.olmo import PreNormBlock
from vramplan.replay.models.olmo2 import Olmo2
from vramplan.replay.operators.elementwise import add, mul
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor


def apply_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Rotary:
    """apply_rotary_pos_emb: each cosine twice, in fp32."""
    tape, shape, dtype = query.tape, (cos.shape[0], 1, *cos.shape[1:]), query.dtype
    cos = tape.new("repeat_interleave", shape, cos.dtype, cos.batched)
    sin = tape.new("repeat_interleave", shape, sin.dtype, sin.batched)
    query_embed = add(mul(to(query, FP32), cos), mul(to(rotate_half(query), FP32), sin))
    key_embed = add(mul(to(key, FP32), cos), mul(to(rotate_half(key), FP32), sin))
    return to(query_embed, dtype), to(key_embed, dtype)


class Attention(LlamaAttention):
    """Ernie4_5Attention, which has no dropout whatever the configuration says."""

    turn = staticmethod(apply_rotary)

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe._replace(attention_dropout=0.0))


class Block(PreNormBlock):
    """Ernie4_5DecoderLayer."""

    attention = Attention
    norm = RMSNorm


class Ernie(Olmo2):
    """Ernie4_5ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    float_block = Block


FORWARD = Ernie
