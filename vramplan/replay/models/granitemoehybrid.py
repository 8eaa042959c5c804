"""Granite 4, as transformers 5.23 computes it (models/granitemoehybrid/modeling_granitemoehybrid.py): state spaces in
the place of most attention, and experts beside a feed-forward layer that every token passes.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GroupedExperts, TopKRouter
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.granite import Granite
from vramplan.replay.models.llama import Attention, Rotary
from vramplan.replay.models.modules import (
    ACTIVATIONS,
    HEAD_LOSSES_WITH_BIAS,
    SELECTIVE,
    Linear,
    Recipe,
    RMSNorm,
)
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.models.state_space import Mixer, space_of
from vramplan.replay.observers import Outer
from vramplan.replay.operators.elementwise import add, mul, mul_scalar
from vramplan.replay.operators.experts import top_k
from vramplan.replay.operators.normalised import softmax
from vramplan.replay.operators.products import linear
from vramplan.replay.operators.views import split, to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape


class MLP:
    """GraniteMoeHybridMLP: gate and up projection in one."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.input_linear = Linear(tape, "input_linear", hidden, 2 * inner, dtype, bias=False)
        self.output_linear = Linear(tape, "output_linear", inner, hidden, dtype, bias=False)
        self.act = ACTIVATIONS[shape.activation]

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = self.input_linear(hidden)
        _chunked = split(hidden, hidden.shape[-1] // 2)
        hidden = mul(self.act(_chunked[0]), _chunked[1])
        return self.output_linear(hidden)


class Router(TopKRouter):
    """GraniteMoeHybridTopKRouter: the best experts by their logits, and a softmax of those alone."""

    def base(self, hidden: Tensor, look: object = None) -> tuple[Tensor, Tensor, Tensor]:
        """The router as it is in the model."""
        logits = to(linear(hidden, self.weight), FP32)
        top_logits, indices = top_k(logits, self.experts.active)
        return logits, to(softmax(top_logits), hidden.dtype), indices


class MoE:
    """GraniteMoeHybridMoE."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        first = len(tape.parameters)
        self.router = Router(tape, recipe)
        self.experts = GroupedExperts(tape, recipe)
        self.parameters = tuple(tape.parameters[first:])

    def __call__(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        flat = view(hidden, (shape[0] * shape[1], shape[2]))
        with Outer(flat, whole=self.parameters):
            _logits, weights, indices = self.router(flat)
            output = self.experts(flat, indices, weights)
        return view(output, shape)


class Block:
    """GraniteMoeHybridDecoderLayer."""

    def __init__(self, tape: Tape, recipe: Recipe, i: int, mask: Tensor | None, rotary: Rotary | None) -> None:
        shape, dtype = recipe.shape, recipe.weight_dtype
        self.input_layernorm = RMSNorm(tape, "input_layernorm", shape.hidden_size, dtype)
        self.post_attention_layernorm = RMSNorm(tape, "post_attention_layernorm", shape.hidden_size, dtype)
        self.block_sparse_moe = None if shape.experts is None else MoE(tape, recipe)
        self.shared_mlp = MLP(tape, recipe)
        self.mamba = Mixer(tape, recipe) if i in space_of(recipe).layers else None
        if self.mamba is None:
            self.self_attn = Attention(tape, recipe)
        self.mask, self.rotary = mask, rotary

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.input_layernorm(hidden)
        if self.mamba is not None:
            hidden = self.mamba(hidden, self.mask)
        else:
            hidden, _weights = self.self_attn(hidden, self.mask, None, self.rotary)
        hidden = add(residual, mul_scalar(hidden))
        residual = hidden
        hidden = self.post_attention_layernorm(hidden)
        if self.block_sparse_moe is not None:
            moe = self.block_sparse_moe(hidden)
            hidden = add(moe, self.shared_mlp(hidden))
        else:
            hidden = self.shared_mlp(hidden)
        hidden = add(residual, mul_scalar(hidden))
        return hidden


class GraniteMoeHybrid(Recurrent, Granite):
    """GraniteMoeHybridForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES_WITH_BIAS
    no_head_losses = "its logits are divided by a number, which Liger has no loss for"
    scales_logits = True
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> bool:
        """Whether a block has a state space; each kind has its mask."""
        assert shape.state_space is not None
        return block in shape.state_space.layers

    def buffers(self) -> list[int]:
        """Bytes of the buffers: the inverse frequencies, kept twice, in fp32, where there are rotary positions."""
        return super().buffers() if self.recipe.shape.positions == "rope" else []

    def model(self, input_ids: Tensor) -> Tensor:
        """GraniteMoeHybridModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = self.embedded(input_ids)
        _position_ids = self.position_ids(input_ids)
        # positions are not among what its mask is made of, so that packed sequences have no mask of their own
        masks = mask_of(_embeds, recipe._replace(packed=False)), recurrent_mask(self.padding)
        hidden = _embeds
        rotary = self.rotary(hidden) if shape.positions == "rope" else None

        def kind(i: int) -> bool:
            return self.block_kind(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, i, masks[kind(i)], rotary)

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=kind)
        hidden = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = GraniteMoeHybrid
