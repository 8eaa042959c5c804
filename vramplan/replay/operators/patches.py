"""Operator rules of patches that a processor has cut before the model sees them: [B P, C t k k], one row each."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Parameter, Tensor


def conv_of_patches(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """`F.conv3d` whose kernel is as large as each patch, so that a patch gives one vector: new, [B P, D].

    Autocast casts bias, weight, x, each a node of its own.
    One formula makes all gradients, so both are saved even if only one of them is needed.
    Saves `x`: the gradient of the weight is x correlated with the incoming one.
    Saves `w`: the gradient of x is the incoming one convolved with the weight turned round.
    Backward: the gradients of x, of the weight and of the bias, each only if it is wanted. What cuDNN takes inside is
    not counted.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, convolution_backward.
    """
    tape = x.tape
    b = None if bias is None else autocast_half(bias)
    w = autocast_half(weight)
    x = autocast_half(x)
    rows, inputs = x.shape
    outputs = w.shape[0]
    need_x, need_w, need_b = (t is not None and t.node is not None for t in (x, w, b))
    x_shape, w_shape, batched = x.shape, w.shape, x.batched
    work = 2 * rows * inputs * outputs

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        tape.work(work * (need_x + need_w))
        gx = tape.new("convolution_backward", x_shape, dtype, batched) if need_x else None
        gw = tape.new("convolution_backward", w_shape, dtype, False) if need_w else None
        gb = tape.new("convolution_backward", (outputs,), dtype, False) if need_b else None
        return (gx, gw, gb)

    node = tape.record("convolution", (x, w, b), backward, (x, w))
    tape.work(work)
    return tape.new("convolution", (rows, outputs), x.dtype, batched, None, node)
