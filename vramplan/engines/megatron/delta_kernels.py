"""Operator rules of the gated delta net in megatron-core, whose kernels are those of flash-linear-attention.

What they save and allocate was read in their source, and never traced: flash-linear-attention 0.5.2,
fla/ops/gated_delta_rule/chunk.py and the files of its kernels; megatron-core 0.20, core/ssm/gated_delta_net/common.py.
B is the micro-batch, S the sequence in chunks of 64 tokens, H heads, K elements of a key, V of a value.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Parameter, Tensor

CHUNK = 64  # tokens
CONV_ROWS = 64  # tokens whose part of the convolution's gradient a kernel sums apart, the fewest


def short_conv(x: Tensor, weight: Parameter) -> Tensor:
    """`causal_conv1d` of flash-linear-attention, with its SiLU: new, contiguous.

    Saves `x`: backward convolves again, and needs it for the gradient of the weight.
    Backward: 1 new, and that of the weight in fp32, once for each run of tokens.
    Source: fla/modules/conv/triton/ops.py, CausalConv1dFunction.
    """
    given, dtype, batched = x.shape, x.dtype, x.batched
    runs = -(-given[1] // CONV_ROWS)
    size = weight.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_x = tape.new("causal_conv1d_bwd", given, dtype, batched)
        _parts = tape.new("causal_conv1d_bwd", (given[0], runs, *size), FP32, batched)
        return (of_x, tape.new("sum", size, weight.dtype, False))

    node = x.tape.record("causal_conv1d", (x, weight), backward, (x,))
    return x.tape.new("causal_conv1d_fwd", given, dtype, batched, None, node)


def l2_normed(x: Tensor) -> Tensor:
    """`l2norm` of flash-linear-attention, over the last dimension: new.

    Saves `out`: the gradient is made of it.
    Saves `rstd`: the factor of each row, in fp32.
    Backward: 1 new.
    Source: fla/modules/l2norm.py, L2NormFunction.
    """
    given, dtype, batched = x.shape, x.dtype, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("l2norm_bwd", given, dtype, batched),)

    tape = x.tape
    node = tape.record("l2norm", (x,), backward)
    out = tape.new("l2norm_fwd", given, dtype, batched)
    tape.save(node, out, tape.new("l2norm_fwd", given[:-1], FP32, batched))
    return out.alias(out.shape, None, node)


def delta_gates(alpha: Tensor, decay_log: Parameter, dt_bias: Parameter) -> Tensor:
    """How fast each head forgets, by functions that the compiler joins: new, in fp32.

    Saves `alpha`: the slope of softplus is a function of it.
    Backward: 1 new, and those of the two weights.
    Source: core/ssm/gated_delta_net/gdn.py, GatedDeltaNet._compute_gates.
    """
    given, dtype, batched = alpha.shape, alpha.dtype, alpha.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        of_weights = [tape.new("sum", one.shape, one.dtype, False) for one in (decay_log, dt_bias)]
        return (tape.new("softplus_backward", given, dtype, batched), *of_weights)

    node = alpha.tape.record("delta_gates", (alpha, decay_log, dt_bias), backward, (alpha,))
    return alpha.tape.new("delta_gates", given, FP32, batched, None, node)


def delta_rule(query: Tensor, key: Tensor, value: Tensor, gates: Tensor, beta: Tensor) -> Tensor:
    """`chunk_gated_delta_rule`: new, [B, S, H, V].

    Saves `query`, `key`, `value` and `beta`: backward computes everything again from them.
    Saves `sums`: the gates summed within each chunk, in fp32.
    Saves `within`: of each token against those of its chunk, after the triangle is solved.
    Backward: the keys and values of the chunks and the states again, the gradients of the states, and those of each
    operand, most of them alive together.
    Source: fla/ops/gated_delta_rule/chunk.py, chunk_gated_delta_rule_fwd and chunk_gated_delta_rule_bwd;
    fla/ops/common/chunk_delta_h.py and chunk_o.py; fla/ops/gated_delta_rule/wy_fast.py.
    """
    tape, (batch, length, heads, wide) = query.tape, value.shape
    narrow, dtype, batched = key.shape[-1], value.dtype, value.batched
    keys, values = key.shape, value.shape
    chunks = -(-length // CHUNK)
    states = (batch, chunks, heads, narrow, wide)
    of_gates, of_beta = gates.shape, beta.dtype
    work = 2 * batch * length * heads * (CHUNK * (3 * narrow + 2 * wide) + 3 * narrow * wide)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(3 * work)
        _w, _u = tape.new("recompute_w_u", keys, dtype, batched), tape.new("recompute_w_u", values, dtype, batched)
        _h, _v_new = tape.new("fwd_h", states, dtype, batched), tape.new("fwd_h", values, dtype, batched)
        dv = tape.new("bwd_dv_local", values, dtype, batched)
        _dh = tape.new("bwd_dhu", states, dtype, batched)
        dv = tape.new("bwd_dhu", values, dtype, batched)
        of_query, of_key, _dw = (tape.new("bwd_dqkwg", keys, dtype, batched) for _ in range(3))
        _dg = tape.new("bwd_dqkwg", of_gates, FP32, batched)
        _dk = tape.new("prepare_wy_repr_bwd", keys, dtype, batched)
        dv = tape.new("prepare_wy_repr_bwd", values, dtype, batched)
        db = tape.new("prepare_wy_repr_bwd", of_gates, of_beta, batched)
        dg = tape.new("chunk_local_cumsum", of_gates, FP32, batched)
        return (of_query, of_key, dv, dg, db)

    node = tape.record("chunk_gated_delta_rule", (query, key, value, gates, beta), backward)
    tape.work(work)
    sums = tape.new("chunk_local_cumsum", of_gates, FP32, batched)
    within = tape.new("fwd_intra", (batch, length, heads, CHUNK), dtype, batched)
    _w, _u = tape.new("fwd_intra", keys, dtype, batched), tape.new("fwd_intra", values, dtype, batched)
    _h, _v_new = tape.new("fwd_h", states, dtype, batched), tape.new("fwd_h", values, dtype, batched)
    out = tape.new("fwd_o", values, dtype, batched)
    tape.save(node, query, key, value, sums, beta, within)
    return out.alias(out.shape, None, node)


def gated(x: Tensor, gate: Tensor) -> Tensor:
    """The activation of a gate in fp32 times `x`, by functions that the compiler joins: new, in the dtype of `x`.

    Saves `x` and `gate`: the gradients of each need both.
    Backward: 2 new.
    Source: core/ssm/gated_delta_net/common.py, _GDNBase._apply_gated_norm; core/transformer/attention.py,
    Attention._apply_output_gate.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        return (tape.like("gate_backward", saved[0]), tape.like("gate_backward", saved[1]))

    node = x.tape.record("gate", (x, gate), backward, (x, gate))
    return x.tape.like("gate", x, None, node)
