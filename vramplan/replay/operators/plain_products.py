"""Operator rule of a product that model code writes out with the transposed weight, as `x @ weight.T`."""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.views import Grads, autocast_half, to
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Parameter, Tensor, reshape_gradient


def times_transposed(x: Tensor, weight: Parameter) -> Tensor:
    """`x @ weight.T` (weight [out, in]): new.

    Autocast casts the weight, at each use as it keeps casts of weights and not of their views, and then x: the compiler
    of PyTorch evaluates the last argument first. So backward casts the gradient of x before that of the weight.
    Saves `x`: the gradient of the weight is x^T times the incoming one; only if the weight needs a gradient.
    Saves `w`: the gradient of x is the incoming one times the weight; only if x needs a gradient.
    Backward: the gradient of the weight first, then that of the input.
    Source: tools/autograd/derivatives.yaml, mm; aten/src/ATen/native/LinearAlgebra.cpp, _matmul_impl, should_fold;
    aten/src/ATen/autocast_mode.cpp, cached_cast.
    """
    tape = x.tape
    w: Tensor = weight
    if tape.autocast is not None and weight.dtype is FP32:
        w = to(weight, tape.autocast, category="weight_casts")
    x = autocast_half(x)
    lead, out_features = x.shape[:-1], weight.shape[0]
    rows = prod(lead)
    need_x, need_w = x.node is not None, w.node is not None
    x_shape, w_shape, g_shape, batched = x.shape, weight.shape, (rows, out_features), x.batched
    work = 2 * rows * x_shape[-1] * out_features

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        flat = grad if grad.shape == g_shape else reshape_gradient(grad, g_shape)
        del grad
        tape.work(work * (need_x + need_w))
        second = tape.new("mm", w_shape, flat.dtype, False) if need_w else None
        return (tape.new("mm", x_shape, flat.dtype, batched) if need_x else None, second)

    saves = [t for t, other in ((x, need_w), (w, need_x)) if other]
    node = tape.record("mm", (x, w), backward, saves)
    tape.view_result(node, g_shape)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("mm", (*lead, out_features), x.dtype, x.batched, None, node)
    if tape.selective:
        tape.keep(True, out)
    return out
