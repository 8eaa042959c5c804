"""Layers of megatron-core 0.16 that devices share: linear layers, norms, and rotary positions.

Source: megatron-core, core/tensor_parallel/layers.py, core/transformer/torch_norm.py,
core/models/common/embeddings/rope_utils.py.
"""

from __future__ import annotations

from vramplan.engines.megatron.adapters import Form, beside
from vramplan.engines.megatron.fp8 import fp8_linear
from vramplan.engines.megatron.tensor_parallel import fused_rms_norm, parallel_linear, reduce_scatter
from vramplan.replay.models.modules import LayerNorm, Recipe
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.operators.elementwise import add, mul, neg
from vramplan.replay.operators.views import cat, narrow, split, to
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, DType, Parameter, Tensor, round_up

VOCABULARY_MULTIPLE = 128  # of each device: --make-vocab-size-divisible-by

Projected = tuple[Tensor, Parameter | None]  # a result, and the bias that whoever comes next adds


def padded_vocabulary(size: int, devices: int) -> int:
    """The vocabulary with rows that make it a multiple of 128 for each device (vocab_size_with_padding)."""
    return round_up(size, VOCABULARY_MULTIPLE * devices)


class ColumnParallelLinear:
    """Its outputs are split; the gradient of its input is summed over devices."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int, *, bias: bool) -> None:
        share = outputs // recipe.slice.tensor
        self.weight = tape.parameter(f"{name}.weight", (share, inputs), recipe.weight_dtype)
        self.weight.in_linear = True
        self.bias = tape.parameter(f"{name}.bias", (share,), recipe.weight_dtype) if bias else None
        self.gathered = gathered(recipe)
        self.product = fp8_linear if recipe.float8 else parallel_linear
        self.adapter = beside(tape, self.weight, name, recipe, Form(gathered=self.gathered))

    def __call__(self, x: Tensor) -> Tensor:
        out = self.product(x, self.weight, self.bias, gathered=self.gathered)
        return out if self.adapter is None else self.adapter(out, x)

    def without_bias(self, x: Tensor) -> Projected:
        """With `skip_bias_add`: who comes next adds it."""
        out = self.product(x, self.weight, gathered=self.gathered)
        return (out if self.adapter is None else self.adapter(out, x)), self.bias


class RowParallelLinear:
    """Its inputs are split; its results are summed over devices, and the bias is left to who comes next."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int, *, bias: bool) -> None:
        share = inputs // recipe.slice.tensor
        self.weight = tape.parameter(f"{name}.weight", (outputs, share), recipe.weight_dtype)
        self.weight.in_linear = True
        self.bias = tape.parameter(f"{name}.bias", (outputs,), recipe.weight_dtype) if bias else None
        self.gathered = gathered(recipe)
        self.product = fp8_linear if recipe.float8 else parallel_linear
        self.adapter = beside(tape, self.weight, name, recipe, Form(row=True, gathered=self.gathered))

    def __call__(self, x: Tensor) -> Projected:
        out = reduce_scatter(self.product(x, self.weight), self.gathered)
        return (out if self.adapter is None else self.adapter(out, x)), self.bias


class DuplicatedLinear:
    """TELinear with `parallel_mode` duplicated: each device has all of it, and runs it on its part of a sequence."""

    def __init__(self, tape: Tape, recipe: Recipe, name: str, inputs: int, outputs: int) -> None:
        self.weight = tape.parameter(f"{name}.weight", (outputs, inputs), recipe.weight_dtype)
        self.weight.in_linear = True
        self.product = fp8_linear if recipe.float8 else parallel_linear
        self.adapter = beside(tape, self.weight, name, recipe, Form(whole=True))

    def __call__(self, x: Tensor) -> Tensor:
        out = self.product(x, self.weight)
        return out if self.adapter is None else self.adapter(out, x)


def gathered(recipe: Recipe) -> int:
    """Over how many devices the sequence is split between layers."""
    return recipe.slice.tensor if recipe.slice.sequence_parallel else 1


class FusedRMSNorm:
    """`torch.nn.RMSNorm`, and Apex's and Transformer Engine's, which keep the same."""

    def __init__(self, tape: Tape, name: str, width: int, dtype: DType) -> None:
        with tape.building(NORMS):
            self.weight = tape.parameter(f"{name}.weight", (width,), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return fused_rms_norm(x, self.weight)


Norm = LayerNorm | FusedRMSNorm


def norm_of(tape: Tape, recipe: Recipe, name: str, width: int | None = None) -> Norm:
    """The normalisation of the model type."""
    shape = recipe.shape
    is_rms = shape.state_space is not None or (shape.positions == "rope" and shape.gated_mlp)
    make = FusedRMSNorm if is_rms else LayerNorm
    return make(tape, name, width or recipe.shape.hidden_size, recipe.weight_dtype)


def apply_rotary(x: Tensor, angles: Tensor) -> Tensor:
    """_apply_rotary_pos_emb_bshd (core/models/common/embeddings/rope_utils.py)."""
    turned = angles.shape[-1]
    rest = narrow(x, -1, x.shape[-1] - turned)
    if turned < x.shape[-1]:
        x = narrow(x, -1, turned)
    cos = to(x.tape.new("cos", angles.shape, FP32, False), FP32)
    cos = to(x.tape.new("mul", angles.shape, FP32, False), x.dtype)
    sin = x.tape.new("sin", angles.shape, FP32, False)
    sin = to(x.tape.new("mul", angles.shape, FP32, False), x.dtype)
    x = add(mul(x, cos), mul(rotate_half(x), sin))
    return cat([x, rest], -1)


def rotate_half(x: Tensor) -> Tensor:
    """_rotate_half, not interleaved."""
    first, second = split(x, x.shape[-1] // 2)
    return cat([neg(second), first], -1)
