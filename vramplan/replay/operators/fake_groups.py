"""Operator rules of torchao's fake quantization whose scales are made with gradients: int4 of MSLK's kernels, and fp8.

Read off torchao 0.18, torchao/quantization (qat/fake_quantizer.py, Int4WeightFakeQuantizer and Float8FakeQuantizer;
quant_primitives.py). Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add, add_scalar, mul, mul_scalar
from vramplan.replay.operators.fake_integers import dequantize, inverse_of, quantize, round_through
from vramplan.replay.operators.float8 import E4M3
from vramplan.replay.operators.piecewise import clamp
from vramplan.replay.operators.sinks import sub
from vramplan.replay.operators.views import Grads, same, to, view
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, INT64, Shape, Tensor


def int4_of_mslk(weight: Tensor, group: int) -> Tensor:
    """A weight rounded to int4 as MSLK's kernel has it beside inputs in bf16: new, in the dtype of the weight.

    Scales and zero points are made in fp32 of the smallest and the largest number of each group, with gradients.
    Source: torchao/quantization/qat/fake_quantizer.py, Int4WeightFakeQuantizer._bf16_activations_forward.
    """
    rows, columns = weight.shape
    _grouped = view(to(weight, FP32), (rows, columns // group, group))
    _most = extreme("amax", _grouped)
    _least = extreme("amin", _grouped)
    _scale = mul_scalar(clamp(sub(_most, _least), both=False))
    _zero_point = add(_least, mul_scalar(_scale))
    _rounded = clamp(round_through(ratio(sub(_grouped, _least), _scale)))
    _rounded = add_scalar(_rounded)
    _rounded = add(mul(_rounded, _scale), _zero_point)
    return to(view(_rounded, (rows, columns)), weight.dtype)


def int4_of_mslk_fp8(weight: Tensor, group: int) -> Tensor:
    """The same beside inputs in fp8: rounded to fp8 row by row, then to int4 in the dtype of the weight.

    Source: torchao/quantization/qat/fake_quantizer.py, Int4WeightFakeQuantizer._fp8_activations_forward.
    """
    rows, columns = weight.shape
    _scale_of_fp8 = float8_scale(weight, bounded=True)
    _rounded = float8_rounded(weight, _scale_of_fp8)
    _rounded = float8_widened(_rounded, _scale_of_fp8, weight)
    _grouped = view(_rounded, (rows, columns // group, group))
    _most = extreme("amax", magnitude(_grouped), keeps=False)
    _scale = clamp(mul_scalar(_most), both=False)
    _zero_point = weight.tape.like("zeros_like", _scale)
    _quantized = quantize(_rounded, inverse_of(_scale), _zero_point)
    return dequantize(_quantized, _scale, _zero_point, weight.dtype)


def float8(x: Tensor) -> Tensor:
    """Numbers rounded to fp8 (e4m3) with a scale for each row, and scaled back: new, in the dtype of x.

    Source: torchao/quantization/qat/fake_quantizer.py, Float8FakeQuantizer.
    """
    _scale = float8_scale(x)
    _rounded = float8_rounded(x, _scale)
    return float8_widened(_rounded, _scale, x)


def float8_scale(x: Tensor, *, bounded: bool = False) -> Tensor:
    """`_choose_scale_float8`: the largest magnitude of each row over that of fp8, in fp32."""
    _most = extreme("amax", magnitude(x))
    if bounded:
        _most = clamp(_most, both=False)
    _scale = mul_scalar(_most)
    return to(_scale, FP32)


def float8_rounded(x: Tensor, scale: Tensor) -> Tensor:
    """`_quantize_affine_float8`: scaled in fp32, clamped, and cast to fp8: 1 byte per element."""
    _wide = to(x, FP32)
    _scaled = ratio(_wide, scale)
    _clamped = clamp(_scaled)
    return to_float8_through(_clamped)


def float8_widened(rounded: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    """`_dequantize_affine_float8`: cast to fp32, scaled, in the dtype of what was rounded."""
    _wide = to(rounded, FP32)
    _scaled = mul(_wide, scale)
    return to(_scaled, like.dtype)


def to_float8_through(x: Tensor) -> Tensor:
    """The cast to fp8 as an autograd function of its own: new, 1 byte per element, nothing saved.

    Backward: nothing new; the gradient, which has been cast to fp8 too, is handed through.
    Source: torchao/quantization/quant_primitives.py, _RoundToFloat8.
    """
    return x.tape.like("_to_copy", x, E4M3, x.tape.record("_RoundToFloat8", (x,), same))


def magnitude(x: Tensor) -> Tensor:
    """|x|: new.

    Saves `x`: the gradient has its sign.
    Backward: the sign of x, and its product with the gradient.
    Source: tools/autograd/derivatives.yaml, abs.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _sign = tape.like("sgn", saved[0])
        return (tape.like("mul", grad),)

    return x.tape.like("abs", x, None, x.tape.record("abs", (x,), backward, (x,)))


def extreme(operator: str, x: Tensor, *, keeps: bool = True) -> Tensor:
    """`x.amax(-1)` or `x.amin(-1)`: new; `keeps` the dimension as one of size 1.

    Saves `x`: the gradient goes to all places that have the extreme value.
    Saves `out`: this value.
    Backward: a mask of these places, how many there are of each, the gradient over that, then 1 new.
    Source: tools/autograd/derivatives.yaml, amax; torch/csrc/autograd/FunctionsManual.cpp, scale_grad_by_count.
    """
    tape, whole, batched = x.tape, x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _mask = tape.new("eq", whole, BOOL, batched)
        _count = tape.new("sum", (*whole[:-1], 1), INT64, batched)
        _share = tape.new("div", (*whole[:-1], 1), grad.dtype, batched)
        return (tape.new("mul", whole, grad.dtype, batched),)

    node = tape.record(operator, (x,), backward, (x,))
    shape: Shape = (*whole[:-1], 1) if keeps else whole[:-1]
    out = tape.new(operator, shape, x.dtype, batched, None, node)
    tape.save(node, out)
    return out


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, where b may need a gradient too, and is broadcast to a: new.

    Saves `a`: the gradient of b needs it; only if there is one.
    Saves `b`: both gradients are divided by it.
    Backward: for b a / b, that divided by b, the negated gradient, and their product, alive together; then 1 new for a.
    Source: tools/autograd/derivatives.yaml, div.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    div_tensor_other_backward.
    """
    need_b = b.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        if not need_b:
            return (tape.like("div", grad), None)
        quotient = tape.like("div", grad)
        again = tape.like("div", grad)
        negated = tape.like("neg", grad)
        of_b = tape.like("mul", grad)
        del quotient, again, negated
        return (tape.like("div", grad), of_b)

    node = a.tape.record("div", (a, b), backward, (a, b) if need_b else (b,))
    return a.tape.like("div", a, None, node)
