"""Seed-OSS, as transformers 5.23 computes it (models/seed_oss/modeling_seed_oss.py): Llama with a dropout after
attention and after the feed-forward layer."""

from __future__ import annotations

from vramplan.replay.models.llama import MLP as LlamaMLP
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe
from vramplan.replay.models.starcoder2 import Attention
from vramplan.replay.operators.elementwise import dropout
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class MLP(LlamaMLP):
    """SeedOssMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        super().__init__(tape, recipe)
        self.p = recipe.hidden_dropout

    def __call__(self, x: Tensor) -> Tensor:
        down = super().__call__(x)
        return dropout(down, self.p)


class Block(LlamaBlock):
    """SeedOssDecoderLayer."""

    attention = Attention
    feed_forward = MLP


class SeedOss(Llama):
    """SeedOssForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = SeedOss
