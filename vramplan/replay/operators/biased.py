"""Operator rules of attention with a bias that is learned, and of what T5 does around it."""

from __future__ import annotations

from math import prod

from vramplan.replay.checkpoints import RECOMPUTED
from vramplan.replay.operators.attention import EFFICIENT_LSE, EFFICIENT_ROWS, _again
from vramplan.replay.operators.views import Grads, autocast_half, expand, narrow, pad_last
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import (
    BOOL,
    FP32,
    INT64,
    DType,
    Parameter,
    Shape,
    Tensor,
    contiguous_strides,
    normalised,
    round_up,
)

BIAS_MULTIPLE = 8  # attention.cpp, preprocess_mask: strides of a bias are padded to a multiple of 8 elements
BIAS_GRADIENT_ROWS = 16  # attention_backward.cu: rows of the bias's gradient are padded to a multiple of 16


def permute(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """`x.permute(order)`: a view, nothing new.

    Backward: the gradient permuted back, nothing new.
    Source: tools/autograd/derivatives.yaml, permute.
    """
    back = tuple(order.index(i) for i in range(len(order)))

    def backward(grad: Tensor, saved: Saved) -> Grads:
        shape, strides = _permuted(grad, back)
        return (grad.alias(shape, strides, None),)

    shape, strides = _permuted(x, order)
    return x.alias(shape, strides, x.tape.record("permute", (x,), backward))


def _permuted(x: Tensor, order: tuple[int, ...]) -> tuple[Shape, Shape | None]:
    strides = x.strides or contiguous_strides(x.shape)
    shape = tuple(x.shape[i] for i in order)
    return shape, normalised(shape, tuple(strides[i] for i in order))


def zeros_with_gradient(tape: Tape, shape: Shape, dtype: DType, *, shared: bool) -> Tensor:
    """`torch.zeros(..., requires_grad=True)` inside the model: new; a leaf that no optimizer knows.

    Backward: its gradient stays until the caller drops the loss, and so does the tensor. It is the incoming one itself,
    or a copy of it if that is of another layout, or if someone else holds it (`shared`). Where nothing is recorded, a
    function returns it as a result of its own.
    Source: torch/csrc/autograd/functions/accumulate_grad.h, AccumulateGrad::accumulateGrad.
    """
    zeros = tape.new("zeros", shape, dtype, False)
    if tape.no_grad:
        return zeros
    if tape.recomputing is not None:
        zeros.node = RECOMPUTED
        return zeros
    leaf = Parameter(tape, "zeros", shape, dtype, tape.copies, True)
    leaf.storage = zeros.storage
    leaf.shared = shared
    tape.leaves.append(leaf)
    return leaf


def clamp(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """`torch.clamp(x, min, max)` with bounds that are tensors of one number and need no gradient: new.

    Saves `x`: the gradient passes where x is within the bounds.
    Saves `low`: the gradient passes where x is within the bounds.
    Saves `high`: the gradient passes where x is within the bounds.
    Backward: a zero, two masks, then 1 new, the gradient with zeros outside the bounds.
    Source: tools/autograd/derivatives.yaml, clamp.Tensor; torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        zero = tape.new("scalar_tensor", (), grad.dtype, False)
        above = tape.like("ge", saved[0], BOOL)
        below = tape.like("le", saved[0], BOOL)
        result = tape.like("where", grad)
        del zero, above, below
        return (result,)

    return x.tape.like("clamp", x, None, x.tape.record("clamp", (x,), backward, (x, low, high)))


def where(mask: Tensor, x: Tensor) -> Tensor:
    """`torch.where(mask, x, number)`: new, in the layout of x.

    Saves `mask`: the gradient passes where x was taken.
    Backward: a zero, then 1 new, the gradient with zeros elsewhere.
    Source: tools/autograd/derivatives.yaml, where.self; aten/src/ATen/native/TensorCompare.cpp, where.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _zero = grad.tape.new("scalar_tensor", (), grad.dtype, False)
        return (grad.tape.like("where", grad),)

    return x.tape.like("where", x, None, x.tape.record("where", (x,), backward, (mask,)))


def where_of_each(mask: Tensor, x: Tensor) -> Tensor:
    """`torch.where(mask, x, number)` of a mask [B, 1, S, S'] for each sample and x [1, a, S, S']: new, [B, a, S, S'].

    It is in the layout of x.
    Saves `mask`: the gradient passes where x was taken.
    Backward: a zero, then 1 new, the gradient with zeros elsewhere, and its sum over the samples.
    Source: tools/autograd/derivatives.yaml, where.self; aten/src/ATen/native/TensorCompare.cpp, where.
    """
    batch, x_shape = mask.shape[0], x.shape
    shape = (batch, *x_shape[1:])
    strides = None if x.strides is None else (prod(x_shape), *x.strides[1:])

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _zero = tape.new("scalar_tensor", (), grad.dtype, False)
        each = tape.like("where", grad)
        if batch == 1:
            return (each,)
        return (tape.new("sum", x_shape, grad.dtype, False),)

    node = x.tape.record("where", (x,), backward, (mask,))
    return x.tape.new("where", shape, x.dtype, True, strides, node)


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """`F.scaled_dot_product_attention` with a bias [1, a, S, S'] as its mask, by the memory-efficient kernel.

    Flash takes no mask. The bias is padded if its strides are no multiples of 8 elements, then expanded to the batch.
    Source: aten/src/ATen/native/transformers/attention.cpp, scaled_dot_product_attention and preprocess_mask.
    """
    q, k, v, bias = autocast_half(q), autocast_half(k), autocast_half(v), autocast_half(bias)
    strides = bias.strides or contiguous_strides(bias.shape)
    if strides[-1] != 1 or any(stride % BIAS_MULTIPLE for stride in strides[:-1]):
        length = bias.shape[-1]
        bias = narrow(pad_last(bias, BIAS_MULTIPLE - length % BIAS_MULTIPLE), -1, length)
    return _efficient_biased(q, k, v, expand(bias, (*q.shape[:3], k.shape[2])))


def _efficient_biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The memory-efficient kernel with a bias: new, [B, S, a, d] in memory; the logsumexp, seed and offset.

    Saves `q`: the scores are made again from q and k.
    Saves `k`: the scores are made again from q and k.
    Saves `v`: the gradient of the probabilities is the incoming one times v.
    Saves `bias`: the scores are made again with it.
    Saves `out`: the row sums of the softmax's gradient are those of the incoming one times the output.
    Saves `lse`: it turns the scores back into probabilities.
    Saves `seed`: the dropout mask is drawn again from it.
    Saves `offset`: the dropout mask is drawn again from it.
    Backward: dq, dk, dv; if the bias needs one, its gradient for every sample, rows padded to 16; workspace: an fp32
    accumulator of dq and delta.
    Source: aten/src/ATen/native/transformers/cuda/attention.cu and attention_backward.cu.
    """
    tape = q.tape
    batch, heads, length, width = q.shape
    kv_length = k.shape[2]
    per_sample = batch // tape.batch
    wants_bias = bias.node is not None
    bias_shape = bias.shape
    row = round_up(kv_length, BIAS_GRADIENT_ROWS)

    parts = (heads * round_up(length, EFFICIENT_ROWS) * width * 4, heads * length * 4)
    per_sample_bytes = per_sample * sum(parts)

    def workspace_bytes(samples: int) -> int:
        return sum(rounded(per_sample * samples * part) for part in parts)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        scores = 2 * batch * heads * length * kv_length * width
        tape.work(5 * scores, scores, width)
        grads = tuple(tape.by_position("efficient_attention_backward", x) for x in saved[:3])
        biased = None
        if wants_bias:
            whole = tape.new("efficient_attention_backward", (*bias_shape[:3], row), saved[0].dtype, True)
            biased = whole.alias(bias_shape, normalised(bias_shape, contiguous_strides(whole.shape)), None)
        tape.workspace("efficient_attention_backward", workspace_bytes, per_sample_bytes)
        return (*grads, biased)

    node = tape.record("efficient_attention", (q, k, v, bias), backward, (q, k, v, bias))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return _again(node, kept)
    tape.work(4 * batch * heads * length * kv_length * width, 0, width)
    out = tape.by_position("efficient_attention", q, node)
    lse = tape.new("efficient_attention", (batch, heads, round_up(length, EFFICIENT_LSE)), FP32, q.batched)
    seed = tape.new("efficient_attention", (1,), INT64, False)
    offset = tape.new("efficient_attention", (1,), INT64, False)
    if tape.selective:
        tape.keep(False, out, lse, seed, offset)
    tape.save(node, out, lse, seed, offset)
    return out
