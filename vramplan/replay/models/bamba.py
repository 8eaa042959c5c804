"""Bamba, as transformers 5.23 computes it (models/bamba/modeling_bamba.py): state spaces in the place of most
attention, whose rotary positions turn a half of each head.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import MLP, Rotary
from vramplan.replay.models.llama import Attention as LlamaAttention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm
from vramplan.replay.models.nemotron import PartlyTurned
from vramplan.replay.models.qwen3_next import apply_partial_rotary
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.models.state_space import Mixer, space_of
from vramplan.replay.operators.elementwise import add
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Tensor
from vramplan.values.model import ModelShape


class Attention(LlamaAttention):
    """BambaAttention."""

    turn = staticmethod(apply_partial_rotary)


class Block:
    """BambaDecoderLayer."""

    def __init__(
        self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor | None, rotary: Rotary
    ) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.feed_forward = MLP(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.pre_ff_layernorm = RMSNorm(tape, "pre_ff_layernorm", width, dtype)
        self.mamba = Mixer(tape, recipe) if i in space_of(recipe).layers else None
        if self.mamba is None:
            self.self_attn = Attention(tape, recipe)
        self.mask, self.rotary = mask, rotary
        self.position_ids = position_ids

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        weights: Tensor | None = None
        if self.mamba is not None:
            hidden = self.mamba(hidden, self.mask)
        else:
            hidden, weights = self.self_attn(hidden, self.mask, self.position_ids, self.rotary)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.pre_ff_layernorm(hidden)
        hidden = self.feed_forward(hidden)
        hidden = add(residual, hidden)
        return hidden, weights


class Bamba(Recurrent, PartlyTurned):
    """BambaForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    holds_outputs = True  # of attention its weights, until the next block has returned

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a state space; each kind has its mask."""
        assert shape.state_space is not None
        return block in shape.state_space.layers

    def model(self, input_ids: Tensor) -> Tensor:
        """BambaModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = self.embedded(input_ids)
        hidden = _embeds
        position_ids = self.position_ids(input_ids)
        masks = mask_of(_embeds, recipe), recurrent_mask(self.padding)
        rotary = self.rotary(hidden)
        _outputs: list[Any] = []

        def kind(i: int) -> bool:
            return self.block_kind(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[kind(i)], position_ids, rotary)

        hidden = run_blocks(
            tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=kind, outputs=_outputs
        )
        hidden = RMSNorm(tape, "final_layernorm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Bamba
