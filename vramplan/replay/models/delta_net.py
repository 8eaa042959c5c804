"""The gated delta net of Qwen3-Next and Qwen3.5: attention that is linear in the sequence, chunk by chunk.

It is as transformers 5.23 computes it by PyTorch's own operators (models/qwen3_next/modeling_qwen3_next.py, and the
same in models/qwen3_5), which is what runs where neither flash-linear-attention nor causal-conv1d is installed. Names
that start with an underscore are locals of that code which outlive their use; they keep their tensor alive here as they
do there.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vramplan.replay.autograd import dropped
from vramplan.replay.models.modules import ACTIVATIONS, Linear, Recipe, RMSNorm
from vramplan.replay.observers import KeyValues, Outer
from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.delta_rule import (
    conv_of_channels,
    cumsum,
    into_place,
    pad,
    softplus,
    solve_triangular,
    times_mask,
    to_row_major,
)
from vramplan.replay.operators.elementwise import (
    add,
    add_scalar,
    masked_fill,
    mean_last,
    mul,
    mul_scalar,
    neg,
    pow_scalar,
    rsqrt,
    silu,
)
from vramplan.replay.operators.experts import sigmoid, sum_last
from vramplan.replay.operators.indexing import split_with_sizes, unsqueeze
from vramplan.replay.operators.latent import sub
from vramplan.replay.operators.products import matmul
from vramplan.replay.operators.views import cat, clone, expand, narrow, select, to, transpose, view
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, Tensor
from vramplan.values.model import LinearAttention

Projected = tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...], list[Tensor]]
CHUNK = 64  # tokens, of torch_chunk_gated_delta_rule


def linear_of(recipe: Recipe) -> LinearAttention:
    """The linear attention of a model that has some."""
    linear = recipe.shape.linear_attention
    assert linear is not None
    return linear


class GatedNorm(RMSNorm):
    """Qwen3NextRMSNormGated: the norm, times the activation of a gate."""

    def __call__(self, hidden: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        dtype = hidden.dtype
        hidden = to(hidden, FP32)
        _variance = mean_last(pow_scalar(hidden))
        hidden = mul(hidden, rsqrt(add_scalar(_variance)))
        hidden = mul(self.weight, to(hidden, dtype))
        hidden = mul(hidden, silu(to(gate, FP32)))
        return to(hidden, dtype)


class GatedDeltaNet:
    """Qwen3_5GatedDeltaNet: four projections of the hidden states."""

    def __init__(self, tape: Tape, recipe: Recipe) -> None:
        linear, dtype = linear_of(recipe), recipe.weight_dtype
        self.linear, self.act = linear, ACTIVATIONS[recipe.shape.activation]
        self.dt_bias = tape.parameter("dt_bias", (linear.value_heads,), dtype)
        self.decay_log = tape.parameter("A_log", (linear.value_heads,), dtype)
        self.conv1d = tape.parameter("conv1d.weight", (linear.channels, 1, linear.kernel), dtype)
        self.build(tape, recipe)

    def build(self, tape: Tape, recipe: Recipe) -> None:
        """The modules, in the order in which the original has them."""
        linear, hidden, dtype = self.linear, recipe.shape.hidden_size, recipe.weight_dtype
        self.norm = GatedNorm(tape, "norm", linear.value_size, dtype)
        self.out_proj = Linear(tape, "out_proj", linear.values, hidden, dtype, bias=False)
        self.in_proj_qkv = Linear(tape, "in_proj_qkv", hidden, linear.channels, dtype, bias=False)
        self.in_proj_z = Linear(tape, "in_proj_z", hidden, linear.values, dtype, bias=False)
        self.in_proj_b = Linear(tape, "in_proj_b", hidden, linear.value_heads, dtype, bias=False)
        self.in_proj_a = Linear(tape, "in_proj_a", hidden, linear.value_heads, dtype, bias=False)

    def __call__(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        with Outer(hidden, own=(self.dt_bias, self.decay_log), read=(self.conv1d,)):
            return self.mixed(hidden, mask)

    def mixed(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """The module's own forward."""
        linear = self.linear
        if mask is not None:  # apply_mask_to_padding_states
            hidden = times_mask(hidden, mask.alias((*mask.shape, 1), None, None))
        batch, length, _ = hidden.shape
        (mixed, z, b, a), _projected, before = self.projected(hidden)
        cache = hidden.tape.role(KeyValues)
        cache.convolves(mixed, linear.kernel)
        mixed = self.convolved(mixed)
        mixed = transpose(mixed, 1, 2)
        query, key, value = split_with_sizes(mixed, (linear.keys, linear.keys, linear.values))
        before.clear()
        query = view(query, (batch, length, linear.key_heads, linear.key_size))
        key = view(key, (batch, length, linear.key_heads, linear.key_size))
        value = view(value, (batch, length, linear.value_heads, linear.value_size))
        beta = sigmoid(b)
        g = mul(neg(exp(to(self.decay_log, FP32))), softplus(add(to(a, FP32), self.dt_bias)))
        core, _last_state, graph = chunk_gated_delta_rule(query, key, value, g, beta, linear, keeps=cache.keeps)
        if _last_state is not None:
            cache.recurs(_last_state, graph)
        del graph
        core = view(core, (batch * length * linear.value_heads, linear.value_size))
        z = view(z, (batch * length * linear.value_heads, linear.value_size))
        core = self.norm(core, z)
        core = view(core, (batch, length, linear.values))
        return self.out_proj(core)

    def projected(self, hidden: Tensor) -> Projected:
        """What goes through the convolution, the gate, and what decides how fast the state is written and forgotten.

        Beside them what outlives the block's forward pass, and what lives until the convolution is done.
        """
        linear, (batch, length, _) = self.linear, hidden.shape
        mixed = self.in_proj_qkv(hidden)
        mixed = transpose(mixed, 1, 2)
        z = self.in_proj_z(hidden)
        z = view(z, (batch, length, linear.value_heads, linear.value_size))
        return (mixed, z, self.in_proj_b(hidden), self.in_proj_a(hidden)), (), []

    def convolved(self, mixed: Tensor) -> Tensor:
        """causal_conv1d_fn: each channel with the tokens before it, which are padded and cut off."""
        channels, kernel = self.linear.channels, self.linear.kernel
        length, dtype = mixed.shape[2], mixed.dtype
        weight = view(self.conv1d, (channels, kernel))
        out = narrow(
            conv_of_channels(to(mixed, weight.dtype), view(weight, (channels, 1, kernel)), kernel - 1), -1, length
        )
        out = self.act(out)
        return to(out, dtype)


class FusedDeltaNet(GatedDeltaNet):
    """Qwen3NextGatedDeltaNet: two projections, whose parts stand head by head."""

    def build(self, tape: Tape, recipe: Recipe) -> None:
        """The modules, in the order in which the original has them."""
        linear, hidden, dtype = self.linear, recipe.shape.hidden_size, recipe.weight_dtype
        self.in_proj_qkvz = Linear(tape, "in_proj_qkvz", hidden, linear.channels + linear.values, dtype, bias=False)
        self.in_proj_ba = Linear(tape, "in_proj_ba", hidden, 2 * linear.value_heads, dtype, bias=False)
        self.norm = GatedNorm(tape, "norm", linear.value_size, dtype)
        self.out_proj = Linear(tape, "out_proj", linear.values, hidden, dtype, bias=False)

    def projected(self, hidden: Tensor) -> Projected:
        """The same; the names of queries, keys and values are those of the parts of the convolution afterwards."""
        batch, length, _ = hidden.shape
        projected, projected_ba = self.in_proj_qkvz(hidden), self.in_proj_ba(hidden)
        query, key, value, z, b, a = self.ordered(projected, projected_ba)
        query, key, value = (view(x, (batch, length, x.shape[2] * x.shape[3])) for x in (query, key, value))
        mixed = cat([query, key, value], -1)
        mixed = transpose(mixed, 1, 2)
        return (mixed, z, b, a), (projected, projected_ba), [query, key, value]

    def ordered(self, qkvz: Tensor, ba: Tensor) -> tuple[Tensor, ...]:
        """fix_query_key_value_ordering."""
        linear = self.linear
        batch, length = qkvz.shape[:2]
        group = linear.value_heads // linear.key_heads
        sizes = (linear.key_size, linear.key_size, group * linear.value_size, group * linear.value_size)
        qkvz = view(qkvz, (batch, length, linear.key_heads, sum(sizes)))
        ba = view(ba, (batch, length, linear.key_heads, 2 * group))
        query, key, value, z = split_with_sizes(qkvz, sizes)
        b, a = split_with_sizes(ba, (group, group))
        value = view(value, (batch, length, linear.value_heads, linear.value_size))
        z = view(z, (batch, length, linear.value_heads, linear.value_size))
        b = view(b, (batch, length, linear.value_heads))
        a = view(a, (batch, length, linear.value_heads))
        return query, key, value, z, b, a


def repeated(x: Tensor, times: int) -> Tensor:
    """`x.repeat_interleave(times, dim=2)` of [B, S, a, d]."""
    batch, length, heads, width = x.shape
    wide = expand(unsqueeze(x, 3), (batch, length, heads, times, width))
    return view(clone(wide), (batch, length, heads * times, width))


def l2_norm(x: Tensor) -> Tensor:
    """l2norm, in fp32."""
    _inverse = rsqrt(add_scalar(sum_last(mul(x, x))))
    return mul(x, _inverse)


def unread(tape: Tape, nobody: bool) -> AbstractContextManager[list[Any]]:
    """Whether nobody reads what is computed inside, so that its graph goes with it."""
    return dropped(tape) if nobody else nullcontext([])


def chunk_gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, linear: LinearAttention, *, keeps: bool
) -> tuple[Tensor, Tensor | None, list[Any]]:
    """torch_chunk_gated_delta_rule: what is within the chunks for all of them at once, then one after the other.

    `keeps` says that the last state is asked for. It is returned then, with what its own graph saved.
    """
    tape, dtype = query.tape, query.dtype
    batch, length, heads, width = value.shape
    if linear.key_heads != linear.value_heads:
        query = repeated(query, linear.value_heads // linear.key_heads)
        key = repeated(key, linear.value_heads // linear.key_heads)
    query, key, value, beta, decay = [to_row_major(transpose(x, 1, 2), FP32) for x in (query, key, value, beta, decay)]
    query = l2_norm(query)
    key = l2_norm(key)
    query = mul_scalar(query)
    missing = -length % CHUNK
    query, key, value = (pad(x, 2, missing) for x in (query, key, value))
    beta, decay = (pad(x, -1, missing) for x in (beta, decay))
    chunks = (length + missing) // CHUNK
    v_beta = mul(value, unsqueeze(beta, 3))
    k_beta = mul(key, unsqueeze(beta, 3))
    query, key, k_beta, v_beta = [
        view(x, (batch, heads, chunks, CHUNK, x.shape[-1])) for x in (query, key, k_beta, v_beta)
    ]
    decay = view(decay, (batch, heads, chunks, CHUNK))
    ones = tape.new("ones", (CHUNK, CHUNK), BOOL, False)
    _upper = tape.new("triu", (CHUNK, CHUNK), BOOL, False)
    del ones
    cum_decay = cumsum(decay)
    pairwise = sub(unsqueeze(cum_decay, 4), unsqueeze(cum_decay, 3))
    pairwise = masked_fill(pairwise, _upper)
    pairwise = exp(pairwise)
    ut_system = mul(matmul(k_beta, transpose(key, -1, -2)), pairwise)
    intra = mul(matmul(query, transpose(key, -1, -2)), pairwise)
    _decayed_k_beta = mul(k_beta, unsqueeze(exp(cum_decay), 4))
    new_values = solve_triangular(ut_system, v_beta)
    k_cumdecay = solve_triangular(ut_system, _decayed_k_beta)
    state = tape.new("zeros", (batch, heads, linear.key_size, width), FP32, True)
    core = tape.like("zeros_like", new_values)
    query = mul(query, unsqueeze(exp(cum_decay), 4))
    with unread(tape, chunks == 1) as _unused:  # nobody reads what a single chunk writes
        key = mul(key, unsqueeze(exp(sub(narrow(cum_decay, -1, 1), cum_decay)), 4))
        chunk_decay = unsqueeze(unsqueeze(exp(select(cum_decay, 3)), 3), 4)
    # the first and the last meet the outside; from the second on gradients of what all share are added up
    for i, _ in tape.repeat(chunks, stride=0, apart=(1, chunks - 2)):
        v_new = sub(select(new_values, 2), matmul(select(k_cumdecay, 2), state))
        inter = matmul(select(query, 2), state)
        core = into_place(core, add(inter, matmul(select(intra, 2), v_new)))
        with unread(tape, i + 1 == chunks) as written:  # nor what the last one does
            state = add(mul(state, select(chunk_decay, 2)), matmul(transpose(select(key, 2), -1, -2), v_new))
    last, graph = (state, [*_unused, *written]) if keeps else (None, [])
    del state, written
    core = view(core, (batch, heads, chunks * CHUNK, width))
    core = narrow(core, 2, length)
    return to_row_major(transpose(core, 1, 2), dtype), last, graph
