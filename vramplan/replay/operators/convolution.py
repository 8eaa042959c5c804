"""Operator rules of convolutional networks, of which vision transformers cut their patches too.

Images are [B, C, h, w] in the logical order of their dimensions.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Parameter, Tensor


def conv2d(x: Tensor, weight: Parameter, bias: Parameter | None = None, *, stride: int, padding: int = 0) -> Tensor:
    """`F.conv2d` of a square kernel, weight [out, in, k, k]: new; a size that the stride does not divide is cut off.

    Autocast casts bias, weight, x, each a node of its own.
    One formula makes all gradients, so both are saved even if only one of them is needed.
    Saves `x`: the gradient of the weight is x correlated with the incoming one.
    Saves `w`: the gradient of x is the incoming one convolved with the weight turned round.
    Backward: the gradients of x, of the weight and of the bias, each only if it is wanted. What cuDNN takes inside is
    not counted: its workspaces, and copies into the layout that it computes in.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, convolution_backward.
    """
    tape = x.tape
    b = None if bias is None else autocast_half(bias)
    w = autocast_half(weight)
    x = autocast_half(x)
    batch, inputs, height, width = x.shape
    outputs, _, kernel, _ = w.shape
    size = tuple((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
    shape = (batch, outputs, *size)
    need_x, need_w, need_b = (t is not None and t.node is not None for t in (x, w, b))
    x_shape, w_shape, batched = x.shape, w.shape, x.batched
    work = 2 * prod(shape) * inputs * kernel * kernel

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        tape.work(work * (need_x + need_w))
        gx = tape.new("convolution_backward", x_shape, dtype, batched) if need_x else None
        gw = tape.new("convolution_backward", w_shape, dtype, False) if need_w else None
        gb = tape.new("convolution_backward", (outputs,), dtype, False) if need_b else None
        return (gx, gw, gb)

    node = tape.record("convolution", (x, w, b), backward, (x, w))
    tape.work(work)
    return tape.new("convolution", shape, x.dtype, batched, None, node)
