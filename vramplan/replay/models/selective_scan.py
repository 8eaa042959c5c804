"""State spaces of Mamba-1, token by token, in Jamba and Mamba.

They are as transformers 5.23 computes them by PyTorch's own operators (models/jamba/modeling_jamba.py and the same in
models/mamba), which is what runs where neither mamba-ssm nor causal-conv1d is installed. Names that start with an
underscore are locals of that code which outlive their use; they keep their tensor alive here as they do there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, RMSNorm
from vramplan.replay.models.state_space import space_of
from vramplan.replay.observers import KeyValues, Outer
from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.delta_rule import conv_of_channels, softplus, times_mask
from vramplan.replay.operators.elementwise import add, mul, neg
from vramplan.replay.operators.indexing import split_with_sizes, stack_last, unsqueeze
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.mamba1_kernels import InnerWeights, causal_conv1d, mamba_inner_fn, selective_scan_fn
from vramplan.replay.operators.products import linear, matmul
from vramplan.replay.operators.views import (
    autocast_half,
    contiguous,
    expand,
    narrow,
    select,
    split,
    to,
    transpose,
    view,
)
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor


class SelectiveMixer:
    """JambaMambaMixer; MambaMixer has other norms of what the states are made with."""

    at_once = False  # whether a kernel may take the whole of it
    norms: Sequence[Callable[[Tensor], Tensor]] = ()  # of the steps, of what writes into the states and what reads

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        space, dtype, hidden = space_of(recipe), recipe.weight_dtype, recipe.shape.hidden_size
        assert space.step_rank is not None
        self.space, self.rank, self.act = space, space.step_rank, ACTIVATIONS[recipe.shape.activation]
        self.kernels = recipe.mamba_kernels
        width, state = space.values, space.state_size
        self.decay_log = tape.parameter("A_log", (width, state), dtype)
        self.skip = tape.parameter("D", (width,), dtype)
        self.conv1d = tape.parameter("conv1d.weight", (width, 1, space.kernel), dtype)
        self.conv1d_bias = tape.parameter("conv1d.bias", (width,), dtype) if space.conv_bias else None
        self.in_proj = Linear(tape, "in_proj", hidden, 2 * width, dtype, bias=space.input_bias)
        self.x_proj = Linear(tape, "x_proj", width, self.rank + 2 * state, dtype, bias=False)
        self.dt_proj = Linear(tape, "dt_proj", self.rank, width, dtype, bias=True)
        self.out_proj = Linear(tape, "out_proj", width, hidden, dtype, bias=space.output_bias)
        self.make_norms(tape, recipe)
        tape.beside_modules(self.decay_log, self.skip)

    def make_norms(self, tape: Tape, recipe: Recipe) -> None:
        """Those of Jamba."""
        sizes = (self.rank, self.space.state_size, self.space.state_size)
        names = ("dt_layernorm", "b_layernorm", "c_layernorm")
        self.norms = [RMSNorm(tape, *one, recipe.weight_dtype) for one in zip(names, sizes, strict=True)]

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        read = tuple([one for one in self.read() if one is not None])
        with Outer(hidden, own=(self.decay_log, self.skip), read=read):
            return self.mixed(hidden, mask)

    def read(self) -> tuple[Parameter | None, ...]:
        """Weights of layers that the module looks at itself."""
        return (self.conv1d, self.conv1d_bias, self.dt_proj.weight, self.dt_proj.bias)

    def mixed(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """The module's own forward."""
        space, dtype = self.space, hidden.dtype
        hidden = masked(hidden, mask)
        _projected = transpose(self.in_proj(hidden), 1, 2)
        decay = neg(exp(to(self.decay_log, FP32)))
        if self.kernels and self.at_once:
            return self.inner(_projected, decay)
        both, gate = split(_projected, space.values, 1)
        cache = hidden.tape.role(KeyValues)
        cache.convolves(both, space.kernel)
        both = self.convolved(both)
        both = masked(transpose(both, 1, 2), mask)
        sizes = (self.rank, space.state_size, space.state_size)
        step, write, read = split_with_sizes(self.x_proj(both), sizes)
        if self.norms:
            step, write, read = (norm(x) for norm, x in zip(self.norms, (step, write, read), strict=True))
        step = self.wide_step(step)
        assert self.dt_proj.bias is not None
        step_bias = self.wide_bias(self.dt_proj.bias)
        skip = to(self.skip, FP32)
        states = transpose(write, 1, 2), transpose(read, 1, 2)
        given = transpose(both, 1, 2), step, decay, states, skip, gate, step_bias
        if self.kernels:
            scan = selective_scan_fn(*given)
        else:
            scan, final_state = selective_scan(*given)
            cache.recurs(final_state)
            del final_state
        del given, states
        return self.out_proj(to(transpose(scan, 1, 2), dtype))

    def inner(self, projected: Tensor, decay: Tensor) -> Tensor:
        """mamba_inner_fn, of all weights."""
        assert self.dt_proj.bias is not None
        out, bias = self.out_proj, self.dt_proj.bias
        conv = view(self.conv1d, (self.space.values, self.space.kernel))
        weights = InnerWeights(
            *(conv, self.conv1d_bias, self.x_proj.weight, self.dt_proj.weight, out.weight, out.bias),
            *(decay, to(self.skip, FP32), to(bias, FP32)),
        )
        return mamba_inner_fn(projected, weights, self.space)

    def wide_step(self, step: Tensor) -> Tensor:
        """How long a step is, of each channel: the layer where weights are quantized, else its weight alone."""
        if self.dt_proj.weight.quantized:
            assert self.dt_proj.bias is not None
            return transpose(sub(self.dt_proj(step), self.dt_proj.bias), 1, 2)
        return weight_product(self.dt_proj.weight, transpose(step, 1, 2))

    def wide_bias(self, bias: Parameter) -> Tensor:
        """The bias in fp32; a quantized layer has left it in the element type of its products."""
        if self.dt_proj.weight.quantized and bias.tape.autocast is not None:
            return bias.tape.new("to", bias.shape, FP32, False)
        return to(bias, FP32)

    def convolved(self, x: Tensor) -> Tensor:
        """causal_conv1d_fn: each channel with the tokens before it, which are padded and cut off."""
        channels, kernel = self.space.values, self.space.kernel
        length, dtype = x.shape[2], x.dtype
        weight = view(self.conv1d, (channels, kernel))
        if self.kernels:
            return causal_conv1d(x, weight, self.conv1d_bias)
        x = to(x, weight.dtype)
        out = narrow(conv_of_channels(x, view(weight, (channels, 1, kernel)), kernel - 1, self.conv1d_bias), -1, length)
        out = self.act(out)
        return to(out, dtype)


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """apply_mask_to_padding_states."""
    return x if mask is None else times_mask(x, mask.alias((*mask.shape, 1), None, None))


def weight_product(weight: Parameter, x: Tensor) -> Tensor:
    """`weight @ x` of [D, R] and [B, R, S]: one product of all tokens if the weight is trained, else one of each
    sample, of which all have the same cast of the weight.

    Source: aten/src/ATen/native/LinearAlgebra.cpp, should_fold and _matmul_impl; aten/src/ATen/autocast_mode.cpp.
    """
    if weight.node is None:
        x = autocast_half(x)
        return matmul(expand(unsqueeze(autocast_half(weight), 0), (x.shape[0], *weight.shape)), x)
    return contiguous(transpose(linear(transpose(x, 1, 2), weight, patched=False), 1, 2))


def selective_scan(
    hidden: Tensor,
    step: Tensor,
    decay: Tensor,
    both: tuple[Tensor, Tensor],
    skip: Tensor,
    gate: Tensor,
    step_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """mamba_selective_scan: the states of all channels, handed from token to token; and the last of these.

    The names of the original: `dt` is the step, `A` the decay, `B` what writes into the states, `C` what reads, `D` the
    skip, `z` the gate.
    """
    dtype, (batch, width, length) = hidden.dtype, hidden.shape
    step = add(step, unsqueeze(to(step_bias, step.dtype), 1))
    step = softplus(step)
    write, read = (transpose(x, 1, 2) for x in both)
    decays = exp(mul(view(decay, (1, width, 1, decay.shape[1])), unsqueeze(step, 3)))
    _writes = mul(unsqueeze(step, 3), to(unsqueeze(write, 1), FP32))
    inputs = mul(_writes, to(unsqueeze(hidden, 3), FP32))
    state = hidden.tape.new("zeros", (batch, width, decay.shape[1]), dtype, True)
    outputs: list[Tensor] = []
    # the first and the last meet the outside; from the second on gradients of what all share are added up
    for _ in hidden.tape.repeat(length, stride=0, apart=(1, length - 2)):
        state = add(mul(select(decays, 2), state), select(inputs, 2))
        scan = matmul(to(state, dtype), unsqueeze(select(read, 1), 2))
        outputs.append(select(scan, 2))
    scan = stack_last(outputs, length)
    scan = add(scan, mul(hidden, unsqueeze(unsqueeze(skip, 0), 2)))
    return mul(scan, ACTIVATIONS["silu"](gate)), state
