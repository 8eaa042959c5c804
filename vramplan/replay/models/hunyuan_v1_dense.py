"""Hunyuan's dense models, as transformers 5.23 computes them (models/hunyuan_v1_dense, modeling_<type>.py): Llama,
whose queries and keys are normalised after their rotary positions."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm, as_is
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Attention(LlamaAttention):
    """HunYuanDenseV1Attention."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        size, dtype = recipe.shape.head_size, recipe.weight_dtype
        self.query_layernorm = RMSNorm(tape, "query_layernorm", size, dtype)
        self.key_layernorm = RMSNorm(tape, "key_layernorm", size, dtype)

    def norm(self, tape: Tape, name: str, heads: int) -> Callable[[Tensor], Tensor]:
        """What normalises queries or keys before their positions: nothing."""
        return as_is

    def scaled(self, query: Tensor, position_ids: Tensor | None) -> Tensor:
        """The queries as they meet the keys."""
        return self.query_layernorm(query)

    def turned_key(self, key: Tensor) -> Tensor:
        """The keys as they meet the queries."""
        return self.key_layernorm(key)


class Block(LlamaBlock):
    """HunYuanDenseV1DecoderLayer."""

    attention = Attention


class Hunyuan(Llama):
    """HunYuanDenseV1ForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = Hunyuan
