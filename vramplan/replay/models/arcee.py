"""Arcee, as transformers 5.23 computes it (models/arcee/modeling_arcee.py): Llama with a feed-forward layer without a
gate, most often of the square of a ReLU."""

from __future__ import annotations

from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama
from vramplan.replay.models.modules import ACTIVATIONS, HEAD_LOSSES, SELECTIVE, Linear, Recipe
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class MLP:
    """ArceeMLP, NemotronMLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.up_proj = Linear(tape, "up_proj", hidden, inner, dtype, bias=bias)
        self.down_proj = Linear(tape, "down_proj", inner, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Block(LlamaBlock):
    """ArceeDecoderLayer."""

    feed_forward = MLP


class Arcee(Llama):
    """ArceeForCausalLM, with its loss."""

    has_tensor_plan = True
    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    hands_groups_on = True  # `use_gqa_in_sdpa`
    text_block = Block


FORWARD = Arcee
