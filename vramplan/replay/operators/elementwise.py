"""Operator rules of elementwise operators, and of reductions over the last dimension."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.operators.views import Grads, autocast_float, same
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, Shape, Tensor, dense_like


def broadcast(a: Tensor, b: Tensor) -> tuple[Shape, Tensor]:
    """The common shape, and the operand that has it and so decides the dimension order (the first of two)."""
    if a.shape == b.shape:
        return a.shape, a
    if a.shape[len(a.shape) - len(b.shape) :] == b.shape and 0 not in a.shape:  # a weight of a norm, a bias
        return a.shape, a
    rank = max(len(a.shape), len(b.shape))
    wide = [(1,) * (rank - len(x.shape)) + x.shape for x in (a, b)]
    shape = tuple(max(pair) for pair in zip(*wide, strict=True))
    return shape, a if a.shape == shape else b


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b with promotion: new, nothing saved.

    The gradient of a sum is the gradient itself, so no value of the inputs is needed.
    Backward: nothing new; both inputs get the SAME gradient tensor, which the engine casts and sums to each of them.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """
    shape, lead = broadcast(a, b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad)

    node = a.tape.record("add", (a, b), backward)
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("add", shape, dtype, a.batched or b.batched, strides, node)


def add_scalar(x: Tensor) -> Tensor:
    """x + number: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, add.Scalar.
    """
    return x.tape.like("add", x, None, x.tape.record("add", (x,), same))


def add_in_place(a: Tensor, b: Tensor) -> Tensor:
    """a += b of one dtype, and of one shape or a bias: the storage of a, nothing saved.

    Backward: nothing new; both inputs get the same gradient tensor, which the engine sums to a bias.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad)

    return a.alias(a.shape, a.strides, a.tape.record("add", (a, b), backward))


def div_by(x: Tensor, divisor: Tensor) -> Tensor:
    """x / divisor, where the divisor is a number on the device that needs no gradient: new.

    Saves `divisor`: the gradient is the incoming one divided by it.
    Backward: 1 new, the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor.
    """
    return x.tape.like("div", x, None, x.tape.record("div", (x,), _divided, (divisor,)))


def _divided(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("div", grad),)


def mul_scalar(x: Tensor) -> Tensor:
    """x * number (also / number, and -x): new, nothing saved, as the number is no tensor.

    Backward: 1 new, the gradient times the number.
    Source: tools/autograd/derivatives.yaml, mul.Scalar, div.Scalar and neg.
    """
    return x.tape.like("mul", x, None, x.tape.record("mul", (x,), _scaled))


neg = mul_scalar


def _scaled(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("mul", grad),)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """a * b: new; an operand is saved only if the other one needs a gradient.

    Saves `a`: the gradient of b is the incoming one times a.
    Saves `b`: the gradient of a is the incoming one times b.
    Backward: for each gradient that is wanted 1 new of the full size, both before the engine sums them to their inputs.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """
    shape, lead = broadcast(a, b)
    need_a, need_b = a.node is not None, b.node is not None
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    batched = a.batched or b.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        def product(other: Tensor) -> Tensor:
            grad.tape.meets(grad, other)
            return grad.tape.like("mul", grad)

        return (product(saved[-1]) if need_a else None, product(saved[0]) if need_b else None)

    saves = [x for x, other in ((a, need_b), (b, need_a)) if other]
    node = a.tape.record("mul", (a, b), backward, saves)
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("mul", shape, dtype, batched, strides, node)


def pow_scalar(x: Tensor) -> Tensor:
    """x ** n: autocast to fp32, then new.

    Saves `x`: its gradient is n * x ** (n - 1) times the incoming one.
    Backward: x ** (n - 1), n times that, and the product with the gradient are alive together.
    Source: tools/autograd/derivatives.yaml, pow.Tensor_Scalar; torch/csrc/autograd/FunctionsManual.cpp, pow_backward.
    """
    x = autocast_float(x)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        power = tape.like("pow", source)
        scaled = tape.like("mul", source)
        result = tape.like("mul", source)
        del power, scaled
        return (result,)

    return x.tape.like("pow", x, None, x.tape.record("pow", (x,), backward, (x,)))


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x): new.

    Saves `out`: the gradient is -1/2 times the incoming one times the result ** 3.
    Backward: -grad / 2, result ** 3 and their product are alive together.
    Source: tools/autograd/derivatives.yaml, rsqrt.
    """
    node = x.tape.record("rsqrt", (x,), _rsqrt_backward)
    out = x.tape.like("rsqrt", x, None, node)
    x.tape.save(node, out)
    return out


def _rsqrt_backward(grad: Tensor, saved: Saved) -> Grads:
    tape, result = grad.tape, saved[0]
    scaled = tape.like("mul", grad)
    cube = tape.like("pow", result)
    out = tape.like("mul", result)
    del scaled, cube
    return (out,)


def mean_last(x: Tensor) -> Tensor:
    """x.mean(-1, keepdim=True): new, nothing saved, as only the number of elements is needed.

    Backward: 1 new of the full size, the expanded gradient divided.
    Source: tools/autograd/derivatives.yaml, mean.dim; torch/csrc/autograd/FunctionsManual.cpp, mean_backward.
    """
    shape, batched = (
        x.shape,
        x.batched,
    )  # not those of the gradient, which has no batch where the mean is of all samples

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("div", shape, grad.dtype, batched),)

    node = x.tape.record("mean", (x,), backward)
    return x.tape.new("mean", (*shape[:-1], 1), x.dtype, x.batched, None, node)


def _from_saved(operator: str) -> Callable[[Tensor, Saved], Grads]:
    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like(operator, grad),)

    return backward


_TANH, _GELU, _SILU = _from_saved("tanh_backward"), _from_saved("gelu_backward"), _from_saved("silu_backward")
_RELU, _DROPOUT = _from_saved("threshold_backward"), _from_saved("native_dropout_backward")


def tanh(x: Tensor) -> Tensor:
    """tanh(x): new.

    Saves `out`: the gradient is the incoming one times 1 - tanh(x) ** 2, which needs the result and not x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, tanh.
    """
    return _saving_result("tanh", x, _TANH)


def relu(x: Tensor) -> Tensor:
    """max(x, 0): new.

    Saves `out`: the gradient passes where the result is positive.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, relu; threshold_backward.
    """
    return _saving_result("relu", x, _RELU)


def _saving_result(operator: str, x: Tensor, backward: Callable[[Tensor, Saved], Grads]) -> Tensor:
    node = x.tape.record(operator, (x,), backward)
    out = x.tape.like(operator, x, None, node)
    x.tape.save(node, out)
    return out


def gelu(x: Tensor) -> Tensor:
    """The fused kernel of gelu (exact or tanh): new.

    Saves `x`: the slope of gelu is a function of x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, gelu.
    """
    return x.tape.like("gelu", x, None, x.tape.record("gelu", (x,), _GELU, (x,)))


def bloom_gelu(x: Tensor) -> Tensor:
    """BLOOM's gelu, an autograd function of its own: new, by operators without gradients, some alive together.

    Saves `x`: the tanh inside is computed again from it.
    Backward: the slope, operator by operator, some alive together; then its product with the gradient.
    Source: transformers, models/bloom/modeling_bloom.py, GeLUFunction, bloom_gelu_forward and bloom_gelu_back.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        plain = saved[0].alias(saved[0].shape, saved[0].strides, None)
        result = tanh(mul(mul_scalar(plain), add_scalar(mul(mul_scalar(plain), plain))))
        slope = add(
            mul(
                mul_scalar(plain),
                mul(add_scalar(mul_scalar(mul(result, result))), add_scalar(mul(mul_scalar(plain), plain))),
            ),
            mul_scalar(add_scalar(result)),
        )
        return (mul(slope, grad),)

    node = x.tape.record("GeLUFunction", (x,), backward)
    plain = x.alias(x.shape, x.strides, None)
    out = mul(mul_scalar(plain), add_scalar(tanh(mul(mul_scalar(plain), add_scalar(mul(mul_scalar(plain), plain))))))
    x.tape.save(node, x)
    return out.alias(out.shape, out.strides, node)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x): new.

    Saves `x`: the slope of silu is a function of x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, silu.
    """
    return x.tape.like("silu", x, None, x.tape.record("silu", (x,), _SILU, (x,)))


def dropout(x: Tensor, p: float) -> Tensor:
    """`native_dropout`: new, and a mask of one byte per element; p = 0 is no operator at all.

    Saves `mask`: backward drops the gradient where the value was dropped.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, native_dropout; aten/src/ATen/native/cuda/Dropout.cu.
    """
    if p == 0:
        return x
    tape = x.tape
    node = tape.record("native_dropout", (x,), _DROPOUT)
    mask = tape.like("native_dropout", x, BOOL)  # the kernel's code makes it before the result
    out = tape.like("native_dropout", x, None, node)
    tape.save(node, mask)
    return out


def masked_fill(x: Tensor, mask: Tensor) -> Tensor:
    """x.masked_fill(mask, number): new, contiguous.

    Saves `mask`: backward drops the gradient where the value was replaced.
    Backward: 1 new, contiguous, the gradient with zeros at the mask.
    Source: tools/autograd/derivatives.yaml, masked_fill.Scalar; aten/src/ATen/native/TensorAdvancedIndexing.cpp,
    masked_fill, which clones before it fills.
    """
    node = x.tape.record("masked_fill", (x,), _masked, (mask,))
    return x.tape.new("masked_fill", x.shape, x.dtype, x.batched, None, node)


def _masked(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.new("masked_fill", grad.shape, grad.dtype, grad.batched),)
