"""Nemotron-H, Nemotron Nano 2 and Nemotron 3, as transformers 5.23 computes them
(models/nemotron_h/modeling_nemotron_h.py): blocks that are a state space, attention, a feed-forward layer or experts,
one of them each.

Names that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here
as they do there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models import deepseek
from vramplan.replay.models.blocks import run_blocks
from vramplan.replay.models.experts import GroupedExperts, experts_of
from vramplan.replay.models.gpt2 import mask_of
from vramplan.replay.models.llama import Attention
from vramplan.replay.models.modules import ACTIVATIONS, HEAD_LOSSES, SELECTIVE, Linear, Recipe, as_is, words
from vramplan.replay.models.modules import RMSNorm as PlainRMSNorm
from vramplan.replay.models.recurrent import Recurrent, recurrent_mask
from vramplan.replay.models.state_space import Mixer
from vramplan.replay.operators.elementwise import add, add_scalar, mean_last, mul, pow_scalar, rsqrt
from vramplan.replay.operators.views import to, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Tensor
from vramplan.values.model import ModelShape

SPACE, FULL, MOE, DENSE = "linear_attention", "full_attention", "moe", "mlp"


def kind_of(shape: ModelShape, block: int) -> str:
    """What a block is."""
    space = shape.state_space
    assert space is not None
    if block in space.layers:
        return SPACE
    if block not in space.feedforward_layers:
        return FULL
    return DENSE if shape.experts is None or block in shape.experts.dense_layers else MOE


class RMSNorm(PlainRMSNorm):
    """NemotronHRMSNorm: the weight is multiplied in fp32."""

    def composed(self, hidden: Tensor) -> Tensor:
        """The norm as the model's code has it."""
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(variance)))
        return to(mul(to(self.weight, FP32), hidden), dtype)


class MLP:
    """NemotronHMLP: without a gate."""

    def __init__(self, tape: Tape, recipe: Recipe, width: int) -> None:
        hidden, dtype, bias = recipe.shape.hidden_size, recipe.weight_dtype, recipe.shape.mlp_bias
        self.up_proj = Linear(tape, "up_proj", hidden, width, dtype, bias=bias)
        self.down_proj = Linear(tape, "down_proj", width, hidden, dtype, bias=bias)
        self.act = ACTIVATIONS[recipe.shape.activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.up_proj(x)))


class Experts(GroupedExperts):
    """NemotronHExperts: without gates."""

    first = "up_proj"
    parts = 1

    def gated(self, gate_up: Tensor) -> Tensor:
        """The activation alone."""
        return self.act(gate_up)


class MixtureOfExperts:
    """NemotronHMoE."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        shape, dtype, experts = recipe.shape, recipe.weight_dtype, experts_of(recipe)
        assert experts.shared_intermediate_size is not None
        self.experts = Experts(tape, recipe)
        self.gate = deepseek.Router(tape, recipe)
        self.shared_experts = MLP(tape, recipe, experts.shared_intermediate_size)
        self.into: Callable[[Tensor], Tensor] = as_is
        self.out: Callable[[Tensor], Tensor] = as_is
        latent, hidden = experts.latent_size, shape.hidden_size
        if latent is not None:
            self.into = Linear(tape, "fc1_latent_proj", hidden, latent, dtype, bias=shape.mlp_bias)
            self.out = Linear(tape, "fc2_latent_proj", latent, hidden, dtype, bias=shape.mlp_bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        residuals = hidden
        batch, length, width = hidden.shape
        _logits, weights, indices = self.gate(hidden)
        hidden = view(hidden, (batch * length, width))
        hidden = self.into(hidden)
        hidden = self.experts(hidden, indices, weights)
        hidden = self.out(hidden)
        hidden = view(hidden, residuals.shape)
        hidden = add(hidden, self.shared_experts(residuals))
        return hidden


class Block:
    """NemotronHBlock."""

    def __init__(self, tape: Tape, recipe: Recipe, kind: str, mask: Tensor | None, position_ids: Tensor | None) -> None:
        shape, self.kind, self.mask = recipe.shape, kind, mask
        self.norm = RMSNorm(tape, "norm", shape.hidden_size, recipe.weight_dtype)
        if kind == SPACE:
            self.mixer: Any = Mixer(tape, recipe)
        elif kind == FULL:
            self.mixer = Attention(tape, recipe)
        elif kind == MOE:
            self.mixer = MixtureOfExperts(tape, recipe)
        else:
            self.mixer = MLP(tape, recipe, shape.intermediate_size)
        self.position_ids = position_ids

    def __call__(self, hidden: Tensor) -> Tensor:
        residual = hidden
        hidden = self.norm(to(hidden, self.norm.weight.dtype))
        if self.kind == SPACE:
            hidden = self.mixer(hidden, self.mask)
        elif self.kind == FULL:
            hidden, _weights = self.mixer(hidden, self.mask, self.position_ids, None)
        else:
            hidden = self.mixer(hidden)
        hidden = add(residual, hidden)
        return hidden


class NemotronH(Recurrent):
    """NemotronHForCausalLM, with its loss."""

    selective = SELECTIVE
    head_losses = HEAD_LOSSES
    takes_padding = True
    takes_packing = True
    takes_virtual_tokens = True
    casts_logits = True
    no_all_linear = "as PEFT ends with an error for out_proj, which that word stands for too"
    all_linear_beyond_lora = True  # tuners/tuners_utils.py, _check_lora_target_modules_mamba, looks at LoRA and its kin
    not_adapted = ("out_proj",)

    @staticmethod
    def block_kind(shape: ModelShape, block: int) -> str:
        """What a block is; those with attention and those with a state space have a mask each."""
        return kind_of(shape, block)

    def buffers(self) -> list[int]:
        """Bytes of the buffers: a bias of each router, of the dtype of the weights as after `model.to(dtype)`."""
        shape = self.recipe.shape
        if shape.experts is None:
            return []
        itemsize = self.recipe.weight_dtype.itemsize
        return [itemsize * shape.experts.routed] * (shape.layers - len(shape.experts.dense_layers))

    def kept(self) -> list[int]:
        """Nothing is kept from one step to the next."""
        return []

    def model(self, input_ids: Tensor) -> Tensor:
        """NemotronHModel.forward."""
        tape, recipe = self.tape, self.recipe
        shape = recipe.shape
        _embeds = words(input_ids, self.embed_tokens)
        hidden = _embeds
        position_ids = self.position_ids(input_ids)
        masks = {FULL: mask_of(_embeds, recipe), SPACE: recurrent_mask(self.padding)}

        def kind(i: int) -> str:
            return kind_of(shape, i)

        def block(i: int) -> Block:
            return Block(tape, recipe, kind(i), masks.get(kind(i)), position_ids)

        hidden = run_blocks(tape, recipe.segments, block, hidden, kind=kind, alike=False, make_up=kind)
        hidden = RMSNorm(tape, "norm_f", shape.hidden_size, recipe.weight_dtype)(hidden)
        return hidden


FORWARD = NemotronH
