"""Operator rules of layer norms and of softmax."""

from __future__ import annotations

from math import prod

from vramplan.replay.observers import Release, Sharding
from vramplan.replay.operators.views import Grads, autocast_float, to
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import (
    FP16,
    FP32,
    DType,
    Parameter,
    Tensor,
)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`native_layer_norm`: autocast to fp32; new, and the fp32 mean and 1 / std of each row.

    Rows whose elements do not lie side by side are copied inside, in backward again, and there the gradient too.
    Saves `x`: its gradient and that of the weight need the normalised input, which is made again from x.
    Saves `scale`: the weight, where it is none of the model's own but a copy, as autocast makes one in fp32: the
    input's gradient is multiplied by it.
    Saves `shift`: the bias, where it is such a copy.
    Saves `mean`: to make the normalised input again without another pass over x.
    Saves `rstd`: to make the normalised input again without another pass over x.
    Backward: the gradients of input, weight and bias at once.
    Source: tools/autograd/derivatives.yaml, native_layer_norm; aten/src/ATen/native/cuda/layer_norm_kernel.cu,
    layer_norm_cuda, layer_norm_backward_cuda (`expect_contiguous`) and LayerNormBackwardKernelImpl (`dY.contiguous`).
    """
    wrapped = x.tape.role(Sharding).wrapped
    if wrapped is not None and type(weight) is Parameter and weight.node is not None:
        beside = () if bias is None else (bias,)
        found: Tensor = wrapped(weight, lambda own, shift=None: layer_norm(x, own, shift), *beside)
        return found
    # what autocast casts are arguments of one call, which compilers for x86 make from the last one to the first
    shift = None if bias is None else autocast_float(bias)
    scale = None if weight is None else autocast_float(weight)
    x = autocast_float(x)
    tape = x.tape
    need_x = x.node is not None
    need_w = weight is not None and weight.node is not None
    need_b = bias is not None and bias.node is not None
    w_shape, w_dtype = x.shape[-1:], x.dtype if scale is None else scale.dtype
    saves = [x]
    away = bool(tape.told.packing) and tape.frame is None  # then the weights themselves are worth saving too
    saves += [one for one in (scale, shift) if one is not None and (away or type(one) is not Parameter)]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        gx = tape.new("native_layer_norm_backward", source.shape, source.dtype, source.batched) if need_x else None
        gw = tape.new("native_layer_norm_backward", w_shape, w_dtype, False) if need_w else None
        gb = tape.new("native_layer_norm_backward", w_shape, w_dtype, False) if need_b else None
        tape.scratch("native_layer_norm_backward", [*_copied(grad), *_copied(source)])
        return (gx, gw, gb)

    node = tape.record("native_layer_norm", (x, scale, shift), backward, saves)
    out = tape.new("native_layer_norm", x.shape, x.dtype, x.batched, None, node)
    rows = (*x.shape[:-1], 1)
    mean = tape.new("native_layer_norm", rows, FP32, x.batched)
    rstd = tape.new("native_layer_norm", rows, FP32, x.batched)
    tape.save(node, mean, rstd)
    tape.scratch("native_layer_norm", _copied(x))
    return out


def _copied(x: Tensor) -> list[int]:
    """Bytes per sample of a copy that is contiguous; none of what is so already."""
    return [] if x.strides is None else [prod(x.shape) // x.tape.batch * x.dtype.itemsize]


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """`F.softmax(x, -1)`, optionally in fp32: new.

    To fp32 from fp16 it is one kernel, whose gradient comes out in fp16; from bf16 it is a cast and a softmax.
    Saves `out`: the gradient is the result times the incoming one less their row sum; x is not needed.
    Saves `x`: only before PyTorch 1.11, whose backward asked it for its element type.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, _softmax (of 1.10: _softmax_backward_data(grad, result, dim, self));
    aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
    """
    target = dtype or (FP32 if x.tape.autocast is not None else x.dtype)
    return _normalised_exponential("_softmax", x, target)


def log_softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """`F.log_softmax(x, -1)`, in the dtype of x, or from bf16 in fp32: new.

    Saves `out`: the gradient is the incoming one less exp(result) times its row sum; x is not needed.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, _log_softmax; aten/src/ATen/native/cuda/SoftMax.cu, host_softmax.
    """
    return _normalised_exponential("_log_softmax", x, dtype or x.dtype)


SOFTMAX_WITHOUT_INPUT = (1, 11)  # of PyTorch: from then on backward needs no input of a softmax


def _normalised_exponential(operator: str, x: Tensor, target: DType) -> Tensor:
    tape = x.tape
    if x.dtype is not target and x.dtype is not FP16:
        x = to(x, target)
    source = x.dtype
    name = operator + "_backward_data"

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like(name, saved[0], source),)

    node = tape.record(operator, (x,), backward)
    out = tape.like(operator, x, target, node)
    tape.save(node, out)
    pytorch = tape.role(Release).pytorch
    if pytorch is not None and pytorch < SOFTMAX_WITHOUT_INPUT:
        tape.save(node, x)
    return out
