"""State spaces of Mamba-2, chunk by chunk, in Granite 4, Nemotron-H, Falcon-H1 and Bamba.

It is as transformers 5.23 computes it by PyTorch's own operators (models/granitemoehybrid/modeling_granitemoehybrid.py,
and the same in models/nemotron_h, falcon_h1 and bamba), which is what runs where neither mamba-ssm nor causal-conv1d is
installed. Names that start with an underscore are locals of that code which outlive their use; they keep their tensor
alive here as they do there.
"""

from __future__ import annotations

from vramplan.replay.models.delta_net import repeated
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe
from vramplan.replay.models.part_names import NORMS
from vramplan.replay.observers import KeyValues, Outer
from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.delta_rule import conv_of_channels, cumsum, pad, softplus, times_mask
from vramplan.replay.operators.elementwise import (
    add,
    add_scalar,
    masked_fill,
    mean_last,
    mul,
    neg,
    pow_scalar,
    rsqrt,
    silu,
)
from vramplan.replay.operators.indexing import permute, split_with_sizes, unsqueeze
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.mamba_kernels import Weights, split_conv1d_scan
from vramplan.replay.operators.state_space import clamp, einsum, inverted, triangle
from vramplan.replay.operators.views import cat, contiguous, expand, narrow, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor
from vramplan.values.model import StateSpace


def space_of(recipe: Recipe) -> StateSpace:
    """The state spaces of a model that has some."""
    space = recipe.shape.state_space
    assert space is not None
    return space


class GatedNorm:
    """GraniteMoeHybridRMSNormGated, and the same of other types: the gate first, then a norm of each group."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        self.space = space_of(recipe)
        with tape.building(NORMS):
            self.weight = tape.parameter("norm.weight", (self.space.values,), recipe.weight_dtype)

    def __call__(self, hidden: Tensor, gate: Tensor) -> Tensor:
        dtype, groups = hidden.dtype, self.space.groups
        hidden = to(hidden, FP32)
        hidden = mul(hidden, silu(to(gate, FP32)))
        *lead, width = hidden.shape
        group = view(hidden, (*lead, groups, width // groups))
        _variance = mean_last(pow_scalar(group))
        group = mul(group, rsqrt(add_scalar(_variance)))
        hidden = view(group, (*lead, width))
        return mul(self.weight, to(hidden, dtype))


class Mixer:
    """GraniteMoeHybridMambaLayer, NemotronHMamba2Mixer, BambaMixer; with `mamba_kernels` as mamba-ssm computes it."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        space, dtype, hidden = space_of(recipe), recipe.weight_dtype, recipe.shape.hidden_size
        self.space, self.act, self.fused = space, ACTIVATIONS["silu"], recipe.mamba_kernels
        self.caches = recipe.returns_cache
        self.dt_bias = tape.parameter("dt_bias", (space.heads,), dtype)
        self.decay_log = tape.parameter("A_log", (space.heads,), dtype)
        self.skip = tape.parameter("D", (space.heads,), dtype)
        self.conv1d = tape.parameter("conv1d.weight", (space.channels, 1, space.kernel), dtype)
        self.conv1d_bias = tape.parameter("conv1d.bias", (space.channels,), dtype) if space.conv_bias else None
        self.width = space.values + space.channels + space.heads
        self.in_proj = Linear(tape, "in_proj", hidden, self.width, dtype, bias=space.input_bias)
        self.norm = self.make_norm(tape, recipe)
        self.out_proj = Linear(tape, "out_proj", space.values, hidden, dtype, bias=space.output_bias)
        tape.beside_modules(self.dt_bias, self.decay_log, self.skip)

    def make_norm(self, tape: Tape, recipe: Recipe) -> GatedNorm | None:
        """The norm before the last projection."""
        return GatedNorm(tape, recipe)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """In training without a cache all weights are handed to mamba2_split_conv1d_scan_combined, which runs where a
        kernel has it."""
        looked_at: tuple[Parameter | None, ...] = (self.conv1d, self.conv1d_bias)
        if not self.caches:
            norm = None if self.norm is None else self.norm.weight
            looked_at = (*looked_at, norm, self.out_proj.weight, self.out_proj.bias)
        read = tuple([one for one in looked_at if one is not None])
        with Outer(hidden, own=(self.dt_bias, self.decay_log, self.skip), read=read):
            return self.mixed(hidden, mask)

    def mixed(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """The module's own forward."""
        space, dtype = self.space, hidden.dtype
        batch, length, _ = hidden.shape
        if mask is not None:  # apply_mask_to_padding_states
            hidden = times_mask(hidden, mask.alias((*mask.shape, 1), None, None))
        projected = self.projected(hidden)
        decay = neg(exp(to(self.decay_log, FP32)))
        if self.fused:
            return split_conv1d_scan(projected, self.weights(decay), space)
        gate, both, step = split_with_sizes(projected, (space.values, space.channels, space.heads))
        both = transpose(both, 1, 2)
        cache = hidden.tape.role(KeyValues)
        cache.convolves(both, space.kernel)
        both = self.convolved(both)
        both = transpose(both, 1, 2)
        if mask is not None:
            both = times_mask(both, mask.alias((*mask.shape, 1), None, None))
        state = space.groups * space.state_size
        hidden, write, read = split_with_sizes(both, (space.values, state, state))
        scan, _final_state = chunk_scan(
            view(hidden, (batch, length, space.heads, space.head_size)),
            step,
            decay,
            view(write, (batch, length, space.groups, space.state_size)),
            view(read, (batch, length, space.groups, space.state_size)),
            (self.skip, self.dt_bias, space),
        )
        cache.recurs(_final_state)
        if not cache.keeps:
            del _final_state
        _scan_result = scan
        scan = view(scan, (batch, length, space.values))
        scan = self.normed(scan, gate)
        return self.out_proj(to(scan, dtype))

    def weights(self, decay: Tensor) -> Weights:
        """What the kernels compute with, the last projection's weight among it."""
        conv = view(self.conv1d, (self.space.channels, self.space.kernel))
        norm = None if self.norm is None else self.norm.weight
        out = self.out_proj
        return Weights(conv, self.conv1d_bias, self.dt_bias, decay, self.skip, norm, out.weight, out.bias)

    def projected(self, hidden: Tensor) -> Tensor:
        """The gate, what goes through the convolution, and how long a step is."""
        return self.in_proj(hidden)

    def normed(self, scan: Tensor, gate: Tensor) -> Tensor:
        """What came out of the states, normalised."""
        assert self.norm is not None
        return self.norm(scan, gate)

    def convolved(self, x: Tensor) -> Tensor:
        """causal_conv1d_fn: each channel with the tokens before it, which are padded and cut off."""
        channels, kernel = self.space.channels, self.space.kernel
        length, dtype = x.shape[2], x.dtype
        weight = view(self.conv1d, (channels, kernel))
        x = to(x, weight.dtype)
        out = narrow(conv_of_channels(x, view(weight, (channels, 1, kernel)), kernel - 1, self.conv1d_bias), -1, length)
        out = self.act(out)
        return to(out, dtype)


def segment_sum(x: Tensor) -> Tensor:
    """segment_sum: the sums between every two tokens of a chunk."""
    size = x.shape[-1]
    x = expanded(x, size)
    mask = triangle(x.tape, size)
    x = masked_fill(x, inverted(mask))
    sums = cumsum(x)
    mask = triangle(x.tape, size)
    return masked_fill(sums, inverted(mask))


def expanded(x: Tensor, times: int) -> Tensor:
    """`x[..., None].expand(..., times)`."""
    return expand(unsqueeze(x, len(x.shape)), (*x.shape, times))


def in_chunks(x: Tensor, missing: int, size: int) -> Tensor:
    """reshape_into_chunks: [B, S, ...] as [B, C, size, ...], padded."""
    x = pad(x, 1, missing)
    batch, length, *rest = x.shape
    return view(x, (batch, length // size, size, *rest))


def chunk_scan(
    hidden: Tensor,
    step: Tensor,
    decay: Tensor,
    write: Tensor,
    read: Tensor,
    rest: tuple[Parameter, Parameter, StateSpace],
) -> tuple[Tensor, Tensor]:
    """mamba2_chunk_scan: within the chunks, then what the states hand on between them; and the last of these.

    The names of the original: `dt` is the step, `A` the decay, `B` what writes into the states, `C` what reads, `D` the
    skip.
    """
    skip, dt_bias, space = rest
    batch, length, heads, width = hidden.shape
    each = heads // space.groups
    step = add(step, to(dt_bias, step.dtype))
    step = softplus(step)
    step = clamp(step)
    hidden = to(hidden, FP32)
    write = repeated(to(write, FP32), each)
    read = repeated(to(read, FP32), each)
    missing = -length % space.chunk
    residual = mul(unsqueeze(skip, 1), pad(hidden, 1, missing))
    hidden = mul(hidden, to(unsqueeze(step, 3), FP32))
    decay = mul(decay, to(step, FP32))
    hidden, decay, write, read = [in_chunks(x, missing, space.chunk) for x in (hidden, decay, write, read)]
    decay = permute(decay, (0, 3, 1, 2))
    sums = cumsum(decay)
    within = exp(segment_sum(decay))
    scores = einsum("bclhn,bcshn->bclsh", read, write)
    masked = mul(scores, permute(within, (0, 2, 3, 4, 1)))
    diagonal = einsum("bclsh,bcshp->bclhp", masked, hidden)
    _decay_states = exp(sub(narrow(sums, -1, 1), sums))
    _decayed = mul(write, unsqueeze(permute(_decay_states, (0, 2, 3, 1)), 4))
    states = einsum("bclhn,bclhp->bchpn", _decayed, hidden)
    _previous = hidden.tape.new("zeros_like", (batch, 1, *states.shape[2:]), states.dtype, True)
    states = cat([_previous, states], 1)
    _decay_chunk = transpose(exp(segment_sum(pad(select(sums, 3), -1, 1))), 1, 3)
    new_states = einsum("bzch,bzhpn->bchpn", _decay_chunk, states)
    states = narrow(new_states, 1, new_states.shape[1] - 1)
    final_state = new_states.alias((batch, *new_states.shape[2:]), None, None)
    _decay_out = exp(sums)
    _read_states = einsum("bclhn,bchpn->bclhp", read, states)
    outside = mul(_read_states, unsqueeze(permute(_decay_out, (0, 2, 3, 1)), 4))
    output = contiguous(add(diagonal, outside))
    output = view(output, (batch, length + missing, heads, width))
    output = add(output, residual)
    return narrow(output, 1, length), final_state
