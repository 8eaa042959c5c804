"""Operator rules of torchao's fake quantization to integers: numbers are rounded, and stay in high precision.

Read off torchao 0.18, torchao/quantization (qat/fake_quantizer.py, IntxFakeQuantizer; qat/utils.py;
quant_primitives.py). Autograd sees each operator. Names that start with an underscore are locals of that code which
outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.elementwise import add_scalar, mul, mul_scalar
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.views import Grads, autocast_float, same, to
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, DType, Shape, Tensor
from vramplan.tuples import NamedTuple


class Scales(NamedTuple):
    """One scale and one zero point for each group."""

    scale: Tensor
    zero_point: Tensor


def scales_of(x: Tensor, shape: Shape, zero_points: DType, *, symmetric: bool) -> Scales:
    """Scales and zero points of groups, from the smallest and the largest number of each: made without gradients.

    The scales are in fp32. Those of symmetric groups begin with zero points in fp32.
    Source: torchao/quantization/quant_primitives.py, _choose_qparams_affine; utils.py, get_group_qparams_symmetric.
    """
    tape, dtype = x.tape, x.dtype

    def new(operator: str, of: DType = dtype, *operands: Tensor) -> Tensor:
        tape.launch(operator, operands)
        return tape.new(operator, shape, of, x.batched)

    _low, _high = new("amin", dtype, x), new("amax", dtype, x)
    zeros = new("zeros_like")
    _below = new("minimum")
    del zeros
    zeros = new("zeros_like")
    above = new("maximum")
    del zeros
    if symmetric:
        negated = new("neg")
        above = new("maximum")
        del negated
        scale = new("div")
        zero_point = new("full_like")
        scale = new("clamp")
    else:
        difference = new("sub")
        scale = new("div")
        del difference
        scale = new("clamp")
        divided = new("div")
        rounded = new("round")
        del divided
        zero_point = new("rsub")
        del rounded
        zero_point = new("clamp")
    _above, first = above, FP32 if symmetric else zero_points
    wide = scale if dtype is FP32 else new("_to_copy", FP32)
    return Scales(wide, zero_point if dtype is first else new("_to_copy", first))


def fake_quantize(
    x: Tensor, shape: Shape, zero_points: DType, keep: Callable[[Tensor], None], *, symmetric: bool
) -> Tensor:
    """Numbers rounded to integers and scaled back: new, in the dtype of x.

    The fake quantizer keeps scales and zero points until it runs again: its old ones go when it has new ones. `keep` is
    told of new scales, which count as what is kept.
    Source: torchao/quantization/qat/fake_quantizer.py, IntxFakeQuantizer; quant_primitives.py,
    _do_fake_quantize_affine.
    """
    tape, batched = x.tape, bool(x.batched)
    scales = scales_of(x, shape, zero_points, symmetric=symmetric)
    del scales
    if symmetric and zero_points is not FP32:
        tape.launch("_to_copy", ())
        cast = tape.new("_to_copy", shape, zero_points, batched)
        del cast
    scale, zero_point = tape.constant(shape, FP32, batched), tape.constant(shape, zero_points, batched)
    keep(scale)
    _quantized = quantize(x, inverse_of(scale), zero_point)
    return dequantize(_quantized, scale, zero_point, x.dtype)


def quantize(x: Tensor, inverse: Tensor, zero_point: Tensor) -> Tensor:
    """`_quantize_affine_no_dtype_cast`: new, in the wider dtype of x and the inverse of its scales."""
    return clamp(add_constant(round_through(mul(x, inverse)), zero_point))


def inverse_of(scale: Tensor) -> Tensor:
    """`1.0 / scale`, which Python's operator makes as the reciprocal times 1.0: autocast to fp32; new.

    Saves `out`: the gradient is the incoming one times -1 / scale ** 2.
    Backward: the negated gradient, the square of the reciprocal and their product are alive together.
    Source: torch/_tensor.py, Tensor.__rdiv__; tools/autograd/derivatives.yaml, reciprocal.
    """
    tape, scale = scale.tape, autocast_float(scale)
    node = tape.record("reciprocal", (scale,), _reciprocal_backward)
    out = tape.like("reciprocal", scale, None, node)
    tape.save(node, out)
    return mul_scalar(out)


def _reciprocal_backward(grad: Tensor, saved: Saved) -> Grads:
    tape = grad.tape
    _negated = tape.like("neg", grad)
    _square = tape.like("mul", grad)
    return (tape.like("mul", grad),)


def dequantize(quantized: Tensor, scale: Tensor, zero_point: Tensor, dtype: DType) -> Tensor:
    """`_dequantize_affine_no_dtype_check`: a copy of what was rounded, without its zero points, scaled, in a dtype."""
    _dequantized = copied_to(quantized, dtype)
    _dequantized = sub_constant(_dequantized, zero_point)
    _dequantized = mul(_dequantized, scale)
    return to(_dequantized, dtype)


def fake_quantize_for_tinygemm(weight: Tensor, shape: Shape, keep: Callable[[Tensor], None]) -> Tensor:
    """A weight in bf16 rounded to uint4 as tinygemm's kernel has it, whose zero points are no integers: new.

    Source: torchao/quantization/quant_primitives.py, _choose_qparams_affine_tinygemm,
    _quantize_affine_tinygemm_no_dtype_cast and _dequantize_affine_tinygemm_no_dtype_check.
    """
    tape, dtype = weight.tape, weight.dtype

    def new(operator: str, *operands: Tensor) -> Tensor:
        tape.launch(operator, operands)
        return tape.new(operator, shape, dtype, False)

    _low, high = new("amin", weight), new("amax", weight)
    difference = new("sub")
    scale = new("div")
    del difference
    scale = new("clamp")
    product = new("mul")
    zero_point = new("add")
    del product, _low, high, zero_point
    scale = tape.constant(shape, dtype, False)
    keep(scale)
    product = new("mul")
    least = new("sub")
    del product
    _quantized = clamp(round_through(divided_by(sub_constant(weight, least), scale)))
    del least
    _dequantized = add_scalar(_quantized)
    _dequantized = scaled_in_place(_dequantized, scale)
    return _dequantized


def divided_by(x: Tensor, divisor: Tensor) -> Tensor:
    """x / a tensor that needs no gradient and is broadcast: new.

    Saves `divisor`: the gradient is the incoming one divided by it.
    Backward: 1 new, the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("div", grad), None)

    return x.tape.like("div", x, None, x.tape.record("div", (x, divisor), backward, (divisor,)))


def scaled_in_place(x: Tensor, factor: Tensor) -> Tensor:
    """`x *= factor` by a tensor that needs no gradient: the storage of x.

    Saves `factor`: the gradient is the incoming one times it.
    Backward: 1 new, the gradient scaled.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("mul", grad), None)

    return x.alias(x.shape, x.strides, x.tape.record("mul_", (x, factor), backward, (factor,)))


def copied_to(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype, copy=True)`: new in any case, nothing saved.

    Backward: the gradient, cast back: 1 new if x has another dtype.
    Source: tools/autograd/derivatives.yaml, _to_copy.
    """
    if x.dtype is not dtype:
        return to(x, dtype)
    return x.tape.like("_to_copy", x, None, x.tape.record("_to_copy", (x,), same))


def round_through(x: Tensor) -> Tensor:
    """Rounding as an autograd function of its own: new, nothing saved.

    Backward: nothing new; the gradient is handed through, as if nothing had been rounded (straight-through estimator).
    Source: torchao/quantization/quant_primitives.py, _Round.
    """
    return x.tape.like("round", x, None, x.tape.record("round", (x,), same))


def add_constant(x: Tensor, constant: Tensor) -> Tensor:
    """x + a tensor that needs no gradient and does not widen x: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """
    return x.tape.like("add", x, None, x.tape.record("add", (x, constant), _first))


def sub_constant(x: Tensor, constant: Tensor) -> Tensor:
    """x - a tensor that needs no gradient, which is cast to the dtype of x first: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    cast = None
    if constant.dtype is not x.dtype:
        cast = x.tape.new("_to_copy", constant.shape, x.dtype, constant.batched)
    node = x.tape.record("sub", (x, constant), _first)
    del constant
    out = x.tape.like("sub", x, None, node)
    del cast
    return out


def _first(grad: Tensor, saved: Saved) -> Grads:
    return (grad, None)
