"""StarCoder2, as transformers 5.23 computes it (models/starcoder2/modeling_starcoder2.py): Llama's attention with a
dropout after it, layer norms, and a feed-forward layer without a gate.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.llama import Block as LlamaBlock
from vramplan.replay.models.llama import Llama, Rotary
from vramplan.replay.models.modules import ACTIVATIONS, HEAD_LOSSES, LayerNorm, Linear, Recipe, words
from vramplan.replay.models.windows import masks_of
from vramplan.replay.operators.elementwise import dropout
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor


class Attention(LlamaAttention):
    """Starcoder2Attention."""

    def __call__(
        self, hidden: Tensor, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary | None
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = super().__call__(hidden, mask, position_ids, rotary)
        output = dropout(output, self.recipe.hidden_dropout)
        return output, weights


class MLP:
    """Starcoder2MLP."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner, bias = shape.hidden_size, shape.intermediate_size, shape.mlp_bias
        self.c_fc = Linear(tape, "c_fc", hidden, inner, dtype, bias=bias)
        self.c_proj = Linear(tape, "c_proj", inner, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[shape.activation]
        self.p = recipe.hidden_dropout

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.c_fc(hidden)
        hidden = self.act(hidden)
        hidden = self.c_proj(hidden)
        hidden = dropout(hidden, self.p)
        return hidden


class Block(LlamaBlock):
    """Starcoder2DecoderLayer."""

    attention = Attention
    norm = LayerNorm
    feed_forward = MLP


class Starcoder2(Llama):
    """Starcoder2ForCausalLM, with its loss."""

    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    takes_prefix = True
    dropping_caches = ("starcoder2",)
    head_losses = HEAD_LOSSES

    def model(self, input_ids: Tensor) -> Tensor:
        """Starcoder2Model.forward."""
        tape, recipe = self.tape, self.recipe
        _embeds = words(input_ids, self.embed_tokens)
        position_ids = self.position_ids(input_ids)
        mask = masks_of(_embeds, recipe)[recipe.shape.sliding_window is not None]
        hidden = dropout(_embeds, recipe.embedding_dropout)
        rotary = self.rotary(hidden)
        state = [hidden]
        del hidden
        hidden = run_blocks(tape, recipe.segments, lambda i: Block(tape, recipe, mask, position_ids, rotary), state)
        hidden = LayerNorm(tape, "norm", recipe.shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Starcoder2
