"""Ministral 3 for text, as transformers 5.23 computes it (models/ministral3/modeling_ministral3.py): Mistral, whose
queries are scaled by their places."""

from __future__ import annotations

from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE
from vramplan.replay.operators.elementwise import mul
from vramplan.replay.operators.views import to
from vramplan.replay.tensors import FP32, Tensor


def scaled_by_places(query: Tensor, position_ids: Tensor) -> Tensor:
    """get_llama_4_attn_scale, made anew in each block, and the queries times it."""
    tape, (rows, length), batched = query.tape, position_ids.shape, position_ids.batched
    scaling = tape.new("div", (rows, length), FP32, batched)
    for operator in ("floor", "add", "log", "mul", "add"):
        scaling = tape.new(operator, (rows, length), FP32, batched)
    scales = to(scaling, query.dtype)
    del scaling
    return mul(query, scales.alias((rows, 1, length, 1), None, None))


class Attention(LlamaAttention):
    """Ministral3Attention."""

    def scaled(self, query: Tensor, position_ids: Tensor | None) -> Tensor:
        """The queries times the scale of their places."""
        assert position_ids is not None
        return scaled_by_places(query, position_ids)


class Block(LlamaBlock):
    """Ministral3DecoderLayer."""

    attention = Attention


class Ministral3(Llama):
    """Ministral3ForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("ministral3",)
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = Ministral3
