"""Jamba, as transformers 5.23 computes it (models/jamba/modeling_jamba.py): state spaces of Mamba-1 in the place of
most attention, which has no positions, and experts in every other block.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GroupedExperts, Look, Routed, TopKRouter, experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import MLP, Attention
from vramplan.replay.models.modules import HEAD_LOSSES, SELECTIVE, Recipe, RMSNorm
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.models.selective_scan import SelectiveMixer
from vramplan.replay.models.state_space import space_of
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.experts import top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class Router(TopKRouter):
    """JambaTopKRouter: a softmax in fp32, whose largest are cast, and not divided by their sum."""

    name = "router.weight"

    def base(self, hidden: Tensor, look: Look | None = None) -> Routed:
        """The router as it is in the model."""
        logits = linear(hidden, self.weight)
        _probabilities = softmax(logits, FP32)
        top_value, indices = top_k(_probabilities, self.experts.active)
        return logits, to(top_value, hidden.dtype), indices


class SparseMoeBlock:
    """JambaSparseMoeBlock."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first = len(tape.parameters)
        self.router = Router(tape, recipe)
        self.experts = GroupedExperts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        hidden = view(hidden, (shape[0] * shape[1], shape[2]))
        with Outer(hidden, whole=self.parameters):
            _logits, weights, indices = self.router(hidden)
            hidden = self.experts(hidden, indices, weights)
        return view(hidden, shape)


class Block:
    """JambaMambaDecoderLayer and JambaAttentionDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, position_ids: Tensor) -> None:
        width, dtype = recipe.shape.hidden_size, recipe.weight_dtype
        self.mamba = SelectiveMixer(tape, recipe) if i in space_of(recipe).layers else None
        if self.mamba is None:
            self.self_attn = Attention(tape, recipe)
        dense = i in experts_of(recipe).dense_layers
        self.feed_forward = MLP(tape, recipe) if dense else SparseMoeBlock(tape, recipe)
        self.input_layernorm = RMSNorm(tape, "input_layernorm", width, dtype)
        self.pre_ff_layernorm = RMSNorm(tape, "pre_ff_layernorm", width, dtype)
        self.mask, self.position_ids = mask, position_ids

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        if self.mamba is not None:
            hidden = self.mamba(hidden, self.mask)
        else:
            hidden, _weights = self.self_attn(hidden, self.mask, self.position_ids, None)
        hidden = add(residual, hidden)
        residual = hidden
        hidden = self.pre_ff_layernorm(hidden)
        hidden = self.feed_forward(hidden)
        hidden = add(residual, hidden)
        return hidden


class Jamba(Recurrent):
    """JambaForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> tuple[bool, bool]:
        """Whether a block has a state space, and whether it has experts; those of each kind are made alike."""
        assert shape.state_space is not None
        assert shape.experts is not None
        return block in shape.state_space.layers, block not in shape.experts.dense_layers

    def buffers(self) -> list[int]:
        """Bytes of the buffers: there are none."""
        return []

    def kept(self) -> list[int]:
        """Nothing is kept from one step to the next."""
        return []

    def model(self, input_ids: Tensor) -> Tensor:
        """JambaModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = self.embedded(input_ids)
        hidden = _embeds
        position_ids = self.position_ids(input_ids)
        masks = mask_of(_embeds, recipe), recurrent_mask(self.padding)

        def kind(i: int) -> tuple[bool, bool]:
            return self.block_kind(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[i in space_of(recipe).layers], position_ids)

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=kind)
        hidden = RMSNorm(tape, "final_layernorm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = Jamba
