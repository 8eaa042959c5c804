"""Operator rules of functions in pieces: the lesser of two values, one or the other, a bound; exp less 1, and erf."""

from __future__ import annotations

from functools import partial

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads, autocast_float
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, Tensor


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1: autocast to fp32, then new.

    Saves `out`: the gradient is the incoming one times the result plus 1.
    Backward: the result plus 1, and its product with the gradient, are alive together.
    Source: tools/autograd/derivatives.yaml, expm1.
    """
    x = autocast_float(x)
    node = x.tape.record("expm1", (x,), _expm1_backward)
    out = x.tape.like("expm1", x, None, node)
    x.tape.save(node, out)
    return out


def _expm1_backward(grad: Tensor, saved: Saved) -> Grads:
    tape = grad.tape
    _slope = tape.like("add", saved[0])
    return (tape.like("mul", grad),)


def erf(x: Tensor) -> Tensor:
    """`torch.erf(x)`: new.

    Saves `x`: its gradient is 2 / sqrt(pi) * exp(-x ** 2) times the incoming one.
    Backward: the square, minus it, its exponential, that times a number, and the product are alive together.
    Source: tools/autograd/derivatives.yaml, erf.
    """
    return x.tape.like("erf", x, None, x.tape.record("erf", (x,), _erf_backward, (x,)))


def _erf_backward(grad: Tensor, saved: Saved) -> Grads:
    tape, x = grad.tape, saved[0]
    _square = tape.like("pow", x)
    _negative = tape.like("neg", x)
    _slope = tape.like("exp", x)
    _scaled = tape.like("mul", x)
    return (tape.like("mul", grad),)


def minimum(x: Tensor, bound: Tensor) -> Tensor:
    """`torch.min(x, bound)` of a number on the device that needs no gradient: new.

    Saves `x`: the gradient goes to the lesser of the two, and half of it to each where they are equal.
    Saves `bound`: to compare again.
    Backward: a mask, half of the gradient, the result and another mask are alive together.
    Source: tools/autograd/derivatives.yaml, minimum.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _equal = tape.like("eq", saved[0], BOOL)
        _half = tape.like("div", grad)
        result = tape.like("where", grad)
        _greater = tape.like("gt", saved[0], BOOL)
        return (result,)

    return x.tape.like("minimum", x, None, x.tape.record("minimum", (x,), backward, (x, bound)))


def one_or_other(mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`torch.where(mask, a, b)` of one shape, with promotion: new.

    Saves `mask`: each gradient passes where its value was taken.
    Backward: 1 new for each of the two, with zeros elsewhere.
    Source: tools/autograd/derivatives.yaml, where.self.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape

        def passed() -> Tensor:
            _zero = tape.new("scalar_tensor", (), grad.dtype, False)
            return tape.like("where", grad)

        return (passed(), passed())

    _, lead = broadcast(a, b)
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    return a.tape.like("where", lead, dtype, a.tape.record("where", (a, b), backward, (mask,)))


def clamp(x: Tensor, *, both: bool = True) -> Tensor:
    """`x.clamp(min, max)`, or with one of the two: new.

    Saves `x`: the gradient is dropped where the value was replaced.
    Backward: 1 new in the layout of x, and while it is made a number and a mask, or two masks with both bounds.
    Source: tools/autograd/derivatives.yaml, clamp; torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
    """
    return x.tape.like("clamp", x, None, x.tape.record("clamp", (x,), partial(_clamped, both=both), (x,)))


def _clamped(grad: Tensor, saved: Saved, *, both: bool = True) -> Grads:
    tape = grad.tape
    _zero = tape.new("scalar_tensor", (), grad.dtype, False)
    _mask = tape.like("ge", saved[0], BOOL)
    _other = tape.like("le", saved[0], BOOL) if both else None  # written into the first
    return (tape.like("where", saved[0], grad.dtype),)


def clamp_in_place(x: Tensor) -> Tensor:
    """`x.clamp_(min, max)`: the storage of x; 1 new, a copy of what x was, where it needs a gradient.

    Saves `copy`: the gradient is dropped where the value was replaced, and x is overwritten.
    Backward: a zero and two masks are alive beside the result.
    Source: tools/autograd/derivatives.yaml, clamp; tools/autograd/gen_variable_type.py, original_self;
    torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
    """

    if x.tape.no_grad or x.node is None:
        return x.alias(x.shape, x.strides, None)
    copy = x.tape.like("clone", x)
    return x.alias(x.shape, x.strides, x.tape.record("clamp_", (x,), _clamped, (copy,)))
