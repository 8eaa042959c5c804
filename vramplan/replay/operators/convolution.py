"""Operator rules of convolutional networks, of which vision transformers cut their patches too.

Images are [B, C, h, w] in the logical order of their dimensions, and sounds [B, C, t].
"""

from __future__ import annotations

from math import prod

from vramplan.replay.layouts import channels_last, has_channels_last
from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Parameter, Shape, Tensor, round_up

PARTS = 7  # of the gradient of a weight
CHANNELS = 8  # to whose multiples tensor cores want channels in 16 bits (NVIDIA, Convolutional Layers, "Channels")


def conv2d(
    x: Tensor, weight: Parameter, bias: Parameter | None = None, *, stride: int, padding: int = 0, groups: int = 1
) -> Tensor:
    """`F.conv2d` of a square kernel, weight [out, in / groups, k, k]: new; what the stride does not divide is cut off.

    Autocast casts bias, weight, x, each a node of its own.
    One formula makes all gradients, so both are saved even if only one of them is needed.
    Where the channels of x lie last those of the result and of the gradients do too, as cuDNN has it.
    Saves `x`: the gradient of the weight is x correlated with the incoming one.
    Saves `w`: the gradient of x is the incoming one convolved with the weight turned round.
    Backward: the gradients of x, of the weight and of the bias, each only if it is wanted. What cuDNN takes inside is
    not counted, but noted for the caching allocator: copies into the layout that it computes in.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, convolution_backward;
    aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format.
    """
    return _convolution(x, weight, bias, stride, padding, groups)


def conv1d(
    x: Tensor, weight: Tensor, bias: Parameter | None = None, *, stride: int, padding: int = 0, groups: int = 1
) -> Tensor:
    """`F.conv1d`, weight [out, in / groups, k]: new; a length that the stride does not divide is cut off.

    Autocast casts bias, weight, x, each a node of its own. Channels that lie side by side are copied apart before the
    kernel runs, in backward again.
    Saves `x`: the gradient of the weight is x correlated with the incoming one.
    Saves `w`: the gradient of x is the incoming one convolved with the weight turned round.
    Backward: the gradients of x, of the weight and of the bias, each only if it is wanted. cuDNN takes it for an image
    of one row.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, view4d, and
    `input.contiguous()` of one dimension in _convolution and convolution_backward.
    """
    return _convolution(x, weight, bias, stride, padding, groups)


def _convolution(
    x: Tensor, weight: Tensor, bias: Parameter | None, stride: int, padding: int, groups: int = 1
) -> Tensor:
    tape = x.tape
    b = None if bias is None else autocast_half(bias)
    w = autocast_half(weight)
    x = autocast_half(x)
    batch, inputs, *lengths = x.shape
    outputs, _, kernel, *_ = w.shape
    shape = (batch, outputs, *((n + 2 * padding - kernel) // stride + 1 for n in lengths))
    need_x, need_w, need_b = (t is not None and t.node is not None for t in (x, w, b))
    x_shape, w_shape, batched = x.shape, w.shape, x.batched
    work = 2 * prod(shape) * inputs // groups * prod(w.shape[2:])
    is_copied = len(lengths) == 1 and x.strides is not None  # an image may lie as it likes
    copied = [prod(x.shape) // tape.batch * x.dtype.itemsize] if is_copied else []
    last = has_channels_last(x.shape, x.strides)
    is_turned = (kernel > 1 or stride > 1) and not last  # else it is a product of matrices that lie well

    def lies(one: Shape) -> Shape | None:
        return channels_last(one) if last else None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, dtype = grad.tape, grad.dtype
        tape.work(work * (need_x + need_w))
        gx = tape.new("convolution_backward", x_shape, dtype, batched, lies(x_shape)) if need_x else None
        if gx is not None and is_turned:
            _turn(gx, x_shape, shape, w_shape)
        gw = tape.new("convolution_backward", w_shape, dtype, False, lies(w_shape)) if need_w else None
        if gw is not None and not last:
            _turn(gw, x_shape, shape, w_shape, PARTS)
        gb = tape.new("convolution_backward", (outputs,), dtype, False) if need_b else None
        tape.scratch("convolution_backward", copied)
        return (gx, gw, gb)

    node = tape.record("convolution", (x, w, b), backward, (x, w))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        again: Tensor = kept[0].alias(kept[0].shape, kept[0].strides, node)
        return again
    tape.work(work)
    out = tape.new("convolution", shape, x.dtype, batched, lies(shape), node)
    if tape.selective:
        tape.keep(False, out)
    tape.scratch("convolution", copied)
    if is_turned:
        _turn(out, x_shape, shape, w_shape)
    return out


def _turn(made: Tensor, x: Shape, out: Shape, weight: Shape, parts: int = 0) -> None:
    """Note what a kernel for images with their channels last makes of its operands and its result, which lie otherwise.

    Channels are filled up to the next multiple of 8; a weight of one pixel lies alike in both layouts. `parts` of the
    gradient of a weight are summed in fp32.
    Seen in the allocations of ResNet-50 and ViT on an H100 with cuDNN 9.19, each byte but for the number of parts,
    which its heuristics choose: 7 in most, 3 or none in others.
    """
    assert made.storage is not None
    each = sum(round_up(one[1], CHANNELS) * prod(one[2:]) for one in (x, out)) * made.dtype.itemsize
    fixed = weight[0] * round_up(weight[1], CHANNELS) * prod(weight[2:]) * made.dtype.itemsize
    fixed = (fixed if prod(weight[2:]) > 1 else 0) + 4 * parts * prod(weight)
    made.tape.unseen.turned[made.storage.index] = fixed, each
