"""Operator rules of experts that run one after another: one of stacked weights, products with it, and their weights."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Tensor, contiguous_strides, normalised


def select_one(x: Tensor) -> Tensor:
    """`x[i]`, where i is a number on the device, which is read: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its place (`select_backward`).
    Source: torch/csrc/autograd/python_variable_indexing.cpp, applySlicing; tools/autograd/derivatives.yaml, select.int.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("select_backward", whole, grad.dtype, False),)

    strides = (x.strides or contiguous_strides(whole))[1:]
    return x.alias(whole[1:], normalised(whole[1:], strides), x.tape.record("select", (x,), backward))


def product(x: Tensor, y: Tensor) -> Tensor:
    """`x.matmul(y)` of two matrices, of which the second is a view of weights: new.

    Autocast casts both at each use, as it keeps casts of weights and not of their views; the second comes first.
    Saves `x`: the gradient of y is x, transposed, times the incoming one; only if y needs a gradient.
    Saves `y`: the gradient of x is the incoming one times y, transposed; only if x needs a gradient.
    Backward: the gradient of y first, then that of x.
    Source: tools/autograd/derivatives.yaml, mm; aten/src/ATen/autocast_mode.cpp, cached_cast.
    """
    tape = x.tape
    y = autocast_half(y)
    x = autocast_half(x)
    need_x, need_y = x.node is not None, y.node is not None
    x_shape, y_shape, batched = x.shape, y.shape, x.batched
    work = 2 * x_shape[0] * x_shape[1] * y_shape[1]
    order = y.strides

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_y))
        second = tape.new("mm", y_shape, grad.dtype, False, order) if need_y else None
        return (tape.new("mm", x_shape, grad.dtype, batched) if need_x else None, second)

    saves = [t for t, other in ((x, need_y), (y, need_x)) if other]
    node = tape.record("mm", (x, y), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("mm", (x_shape[0], y_shape[1]), x.dtype, batched, None, node)
    if tape.selective:
        tape.keep(True, out)
    return out


def norm_1(x: Tensor) -> Tensor:
    """`torch.norm(x, p=1, dim=-1, keepdim=True)`: new, under autocast in fp32, without a cast of x.

    Saves `x`: the gradient is the incoming one times its signs.
    Saves `out`: which norms of other powers need.
    Backward: the signs and their product with the gradient are alive together.
    Source: tools/autograd/derivatives.yaml, linalg_vector_norm; torch/csrc/autograd/FunctionsManual.cpp,
    linalg_vector_norm_backward; aten/src/ATen/autocast_mode.h, fp32_append_dtype.
    """
    tape = x.tape
    dtype = x.dtype if tape.autocast is None else FP32

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _signs = grad.tape.like("sgn", saved[0])
        return (grad.tape.like("mul", saved[0], dtype),)

    node = tape.record("linalg_vector_norm", (x,), backward, (x,))
    out = tape.new("linalg_vector_norm", (*x.shape[:-1], 1), dtype, x.batched, None, node)
    tape.save(node, out)
    return out


def mul_in_place(x: Tensor, by: Tensor) -> Tensor:
    """`x *= by`, where by is as large as x and needs no gradient: the storage of x.

    Saves `by`: the gradient is the incoming one times it.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("mul", grad),)

    return x.alias(x.shape, x.strides, x.tape.record("mul_", (x,), backward, (by,)))
