"""Operator rules of experts that each compute every token, and of positions that turn complex numbers: Llama 4."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Tensor


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1)` of rows [n, w]: new, [times n, w]; nothing saved.

    Backward: 1 new, the gradient summed over the repeats.
    Source: tools/autograd/derivatives.yaml, repeat; torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("sum", whole, grad.dtype, grad.batched),)

    node = x.tape.record("repeat", (x,), backward)
    return x.tape.new("repeat", (times * whole[0], whole[1]), x.dtype, x.batched, None, node)


def product_by_expert(x: Tensor, weight: Tensor) -> Tensor:
    """`torch.bmm(x, weight)` of rows [E, n, in] with all experts' weights [E, in, out]: new, [E, n, out].

    Saves `x3`: the gradient of the weights is the rows, transposed, times the incoming one.
    Saves `w3`: the gradient of the rows is the incoming one times the weights, transposed.
    Backward: the gradient of the weights first, then that of the rows.
    Source: tools/autograd/derivatives.yaml, bmm.
    """
    w3 = autocast_half(weight)  # the arguments of autocast's wrapper are computed from the last to the first
    x3 = autocast_half(x)
    tape = x3.tape
    need_x, need_w = x3.node is not None, w3.node is not None
    rows, weights, batched = x3.shape, w3.shape, x3.batched
    work = 2 * rows[0] * rows[1] * weights[1] * weights[2]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_w))
        second = tape.new("bmm", weights, grad.dtype, False) if need_w else None
        first = tape.new("bmm", rows, grad.dtype, batched) if need_x else None
        return (first, second)

    saves = [t for t, other in ((x3, need_w), (w3, need_x)) if other]
    node = tape.record("bmm", (x3, w3), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("bmm", (*rows[:2], weights[2]), x3.dtype, batched, None, node)
    if tape.selective:
        tape.keep(False, out)
    return out


def scatter_rows(x: Tensor, indices: Tensor, width: int) -> Tensor:
    """`torch.full_like(...).scatter_(1, indices, x)`: what it is written into, [n, width].

    Saves `indices`: the gradient is gathered from there.
    Backward: 1 new, the gathered gradient.
    Source: tools/autograd/derivatives.yaml, scatter.src.
    """
    tape, narrow = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("gather", narrow, grad.dtype, grad.batched),)

    node = tape.record("scatter", (x,), backward, (indices,))
    return tape.new("full_like", (narrow[0], width), x.dtype, x.batched, None, node)


def sum_first(x: Tensor) -> Tensor:
    """`x.sum(dim=0)` of [E, n, w]: new, [n, w], under autocast in fp32; nothing saved.

    Backward: nothing new, the gradient expanded.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList.
    """
    tape, whole = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = grad.strides or (whole[2], 1)
        return (grad.alias(whole, (0, *strides), None),)

    dtype = FP32 if tape.autocast is not None else x.dtype
    return tape.new("sum", whole[1:], dtype, x.batched, None, tape.record("sum", (x,), backward))


def as_real(x: Tensor) -> Tensor:
    """`torch.view_as_real(x)`: a view.

    Backward: 1 new if the gradient is not contiguous, else nothing.
    Source: tools/autograd/derivatives.yaml, view_as_real.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        if grad.strides is None:
            return (grad.alias(grad.shape, None, None),)
        return (grad.tape.new("clone", grad.shape, grad.dtype, grad.batched),)

    return x.alias(x.shape, x.strides, x.tape.record("view_as_real", (x,), backward))
