"""Operator rule of torchao's Float8Linear: a linear layer whose three products run in fp8, scaled tensor by tensor.

Read off torchao 0.18, torchao/float8 (float8_linear.py, float8_ops.py, float8_training_tensor.py, float8_utils.py),
with the default recipe ("tensorwise", dynamic scaling). Names that start with an underscore are locals of that code
which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add
from vramplan.replay.operators.views import Grads, autocast_half, to, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import (
    FP32,
    FP64,
    DType,
    Parameter,
    Tensor,
    contiguous_strides,
    normalised,
    reshape_gradient,
)
from vramplan.tuples import NamedTuple

E4M3, E5M2 = DType("float8_e4m3fn", 1), DType("float8_e5m2", 1)
MULTIPLE = 16  # both features of a layer: torch._scaled_mm takes no others (aten/src/ATen/native/cuda/ScaledBlas.cpp)


class Scaled(NamedTuple):
    """A tensor in fp8 and the scalar that it was multiplied by."""

    data: Tensor
    scale: Tensor


def to_float8(x: Tensor, dtype: DType) -> Scaled:
    """A tensor in fp8, and its scale from its own largest value: new, 1 byte per element and a scalar in fp32.

    The absolute values are a tensor of their own. The scaled copy is made in fp32: the cast, the product and the
    clamped product, two of them alive at a time.
    Source: torchao/float8/float8_utils.py, tensor_to_scale and to_fp8_saturated; float8_training_tensor.py,
    _ToFloat8ConstrFunc.forward.
    """
    scale = _scale(x)
    _scaled = _times(x, scale)
    clamped = x.tape.like("clamp", _scaled)
    return Scaled(x.tape.like("_to_copy", clamped, dtype), scale)


def _scale(x: Tensor) -> Tensor:
    tape = x.tape
    amax = _amax(x)
    amax = tape.new("_to_copy", (), FP64, False)
    clamped = tape.new("clamp", (), FP64, False)
    inverse = tape.new("reciprocal", (), FP64, False)
    del clamped
    scale = tape.new("mul", (), FP64, False)
    del inverse
    _amax_in_fp64, amax = amax, scale
    return tape.new("_to_copy", (), FP32, False)


def _amax(x: Tensor) -> Tensor:
    _absolute = x.tape.like("abs", x)
    return x.tape.new("max", (), x.dtype, False)


def _times(x: Tensor, scale: Tensor) -> Tensor:
    wide = x.tape.like("_to_copy", x, FP32)
    return x.tape.like("mul", wide)


def _columns(x: Tensor) -> Tensor:
    """The second operand of a scaled product, which is read by columns: a copy if it lies by rows.

    Source: torchao/float8/float8_ops.py, preprocess_addmm.
    """
    return _by(x, by_rows=False)


def _rows(x: Tensor) -> Tensor:
    """The first operand, which is read by rows: a copy if it lies by columns."""
    return _by(x, by_rows=True)


def _by(x: Tensor, *, by_rows: bool) -> Tensor:
    strides = x.strides or contiguous_strides(x.shape)
    if (strides[0] > strides[1]) is by_rows:
        return x
    rows, columns = x.shape
    other = None if by_rows else normalised(x.shape, (1, rows))
    return x.tape.new("clone", (rows, columns), x.dtype, x.batched, other)


def _turned(x: Tensor) -> Tensor:
    strides = x.strides or contiguous_strides(x.shape)
    shape = x.shape[::-1]
    return x.alias(shape, normalised(shape, strides[::-1]), None)


def _product(a: Scaled, b: Scaled, dtype: DType, *, batched: int) -> Tensor:
    """A product of two tensors in fp8, in high precision; the inverses of the scales are scalars of their own."""
    tape = a.data.tape
    _a, _b = _rows(a.data), _columns(b.data)
    _inverse_a = tape.new("reciprocal", (), FP32, False)
    _inverse_b = tape.new("reciprocal", (), FP32, False)
    return tape.new("_scaled_mm", (a.data.shape[0], b.data.shape[1]), dtype, batched)


def float8_linear(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """Float8Linear: x and the weight [out, in] are cast to fp8 and multiplied; new, in the dtype of x.

    No fp8 tensor is kept: each of the three products casts its operands again. The bias is added afterwards, by an
    operator of its own.
    Saves `x`: the gradient of the weight needs it, in fp8; it is kept in high precision.
    Saves `weight`: the gradient of x needs it, in fp8.
    Backward: the incoming gradient in fp8 (e5m2), twice, the weight and x in fp8 again, all alive together; a copy of
    each operand that does not lie as the product reads it; then both gradients.
    Source: torchao/float8/float8_linear.py, matmul_with_hp_or_float8_args and Float8Linear.forward.
    """
    tape = x.tape
    x = autocast_half(x)
    out_features, in_features = weight.shape
    lead = x.shape[:-1]
    x_shape, batched = x.shape, x.batched
    rows = 1
    for size in lead:
        rows *= size
    work = 2 * rows * in_features * out_features

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        high, kept = saved
        flat = reshape_gradient(grad, (rows, out_features))
        tape.work(2 * work)
        _grad = to_float8(flat, E5M2)
        _weight = to_float8(kept, E4M3)  # as the weight is seen by forward: turned, and so by columns
        of_x = _product(_grad, Scaled(_weight.data, _weight.scale), flat.dtype, batched=batched)
        of_x = of_x.alias(x_shape, None, None)
        flat_x = reshape_gradient(high, (rows, in_features))
        _grad_again = to_float8(flat, E5M2)
        _x = to_float8(flat_x, E4M3)
        turned = Scaled(_turned(_grad_again.data), _grad_again.scale)
        return (of_x, _product(turned, _x, flat.dtype, batched=False))

    node = tape.record("float8_linear", (x, weight), backward)
    tape.work(work)
    out = _forward(x, weight, rows)
    tape.save(node, x, weight)  # a Python function's are saved when it returns (torch/csrc/autograd/custom_function.h)
    out = out.alias((*lead, out_features), None, node)
    if bias is not None:
        out = add(out, to(bias, out.dtype))
    return out


def _forward(x: Tensor, weight: Parameter, rows: int) -> Tensor:
    in_features = weight.shape[1]
    _x = to_float8(x, E4M3)
    _weight = to_float8(weight, E4M3)
    flat = view(_x.data.alias(_x.data.shape, _x.data.strides, None), (rows, in_features))
    return _product(Scaled(flat, _x.scale), Scaled(_turned(_weight.data), _weight.scale), x.dtype, batched=x.batched)
