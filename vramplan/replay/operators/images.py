"""Rules of the operators of convolutional networks, batch normalisation and pooling, and of images made larger.

Images are [B, C, H, W], contiguous but for those that are made larger; C is the number of channels.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads, autocast_float, contiguous
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, INT64, Parameter, Shape, Tensor, dense_like


def batch_norm(x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """`F.batch_norm` in training: new, and the fp32 mean and 1 / std of each channel of this batch.

    Autocast leaves it alone: the output has the dtype of x, whatever that of the weight is. Running statistics are
    buffers that are updated in place. PyTorch's own kernel and cuDNN's keep the same; cuDNN's reserve space for images
    in NCHW is empty.
    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `mean`: to make the normalised input again without another pass over x.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: the gradients of input, weight and bias at once, the latter two in the dtype of the weight.
    Source: tools/autograd/derivatives.yaml, native_batch_norm; aten/src/ATen/native/cuda/Normalization.cu.
    """
    tape, channels = x.tape, (x.shape[1],)
    need_x, need_w, need_b = x.node is not None, weight.node is not None, bias.node is not None
    dtype = weight.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        gx = tape.like("native_batch_norm_backward", source) if need_x else None
        gw = tape.new("native_batch_norm_backward", channels, dtype, False) if need_w else None
        gb = tape.new("native_batch_norm_backward", channels, dtype, False) if need_b else None
        return (gx, gw, gb)

    node = tape.record("native_batch_norm", (x, weight, bias), backward, (x,))
    out = tape.like("native_batch_norm", x, None, node)
    mean = tape.new("native_batch_norm", channels, FP32, False)
    rstd = tape.new("native_batch_norm", channels, FP32, False)
    tape.save(node, mean, rstd)
    return out


def max_pool(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """`F.max_pool2d` of [B, C, H, W]: new, and the int64 place of each maximum.

    Saves `x`: the kernel of backward asks for its shape and layout.
    Saves `indices`: each gradient goes to the place of its maximum.
    Backward: 1 new of the shape of x.
    Source: tools/autograd/derivatives.yaml, max_pool2d_with_indices; aten/src/ATen/native/cuda/DilatedMaxPool2d.cu.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("max_pool2d_with_indices_backward", saved[0]),)

    node = tape.record("max_pool2d_with_indices", (x,), backward, (x,))
    batch, channels, *size = x.shape
    shape = (batch, channels, *((n + 2 * padding - kernel) // stride + 1 for n in size))
    out = tape.new("max_pool2d_with_indices", shape, x.dtype, x.batched, None, node)
    indices = tape.new("max_pool2d_with_indices", shape, INT64, x.batched)
    tape.save(node, indices)
    return out


def average_pool(x: Tensor) -> Tensor:
    """`nn.AdaptiveAvgPool2d((1, 1))` of [B, C, H, W]: a mean over each channel, new; nothing saved.

    Backward: 1 new of the shape of x, the gradient spread and divided.
    Source: aten/src/ATen/native/AdaptiveAveragePooling.cpp, which takes a mean here; derivatives.yaml, mean.dim.
    """
    shape = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("div", shape, grad.dtype, grad.batched),)

    node = x.tape.record("mean", (x,), backward)
    return x.tape.new("mean", (*shape[:2], 1, 1), x.dtype, x.batched, None, node)


def mean_of_image(x: Tensor) -> Tensor:
    """`x.mean([-2, -1])` of [B, C, H, W]: a mean over each channel, new; nothing saved.

    Backward: 1 new of the shape of x, the gradient spread and divided.
    Source: tools/autograd/derivatives.yaml, mean.dim; torch/csrc/autograd/FunctionsManual.cpp, mean_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("div", whole, grad.dtype, grad.batched),)

    return x.tape.new("mean", whole[:2], x.dtype, x.batched, None, x.tape.record("mean", (x,), backward))


def lies_as(one: Tensor, shape: Shape) -> Shape | None:
    """The strides of a new tensor of this shape whose dimensions lie in the order of another's."""
    return None if one.strides is None else dense_like(shape, one.strides)


def bicubic(x: Tensor, edge: int) -> Tensor:
    """`F.interpolate` of fp32 [B, C, h, w] to [B, C, edge, edge], mode bicubic: new, and it lies as x; nothing saved.

    Backward: 1 new of the shape of x, which lies as the incoming gradient; that is copied meanwhile unless it is
    contiguous.
    Source: aten/src/ATen/native/cuda/UpSampleBicubic2d.cu, upsample_bicubic2d_backward_out_cuda_template;
    aten/src/ATen/native/UpSample.cpp; tools/autograd/derivatives.yaml, upsample_bicubic2d.
    """
    tape, source = x.tape, x.shape
    whole = (*source[:2], edge, edge)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        made = grad.tape.new("upsample_bicubic2d_backward", source, FP32, x_batched, lies_as(grad, source))
        _copied = contiguous(grad)
        return (made,)

    x_batched = x.batched
    node = tape.record("upsample_bicubic2d", (x,), backward)
    return tape.new("upsample_bicubic2d", whole, x.dtype, x.batched, lies_as(x, whole), node)


def bilinear(x: Tensor, edge: int) -> Tensor:
    """`F.interpolate` of [B, C, h, w] to [B, C, edge, edge], mode bilinear: new, and it lies as x; nothing saved.

    Autocast casts x to fp32.
    Backward: 1 new of the shape of x, which lies as the incoming gradient.
    Source: aten/src/ATen/autocast_mode.h, AT_FORALL_FP32; aten/src/ATen/native/cuda/UpSampleBilinear2d.cu;
    aten/src/ATen/native/UpSample.cpp; tools/autograd/derivatives.yaml, upsample_bilinear2d.
    """
    x = autocast_float(x)
    tape, source = x.tape, x.shape
    whole = (*source[:2], edge, edge)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("upsample_bilinear2d_backward", source, grad.dtype, x_batched, lies_as(grad, source)),)

    x_batched = x.batched
    node = tape.record("upsample_bilinear2d", (x,), backward)
    return tape.new("upsample_bilinear2d", whole, x.dtype, x.batched, lies_as(x, whole), node)
