"""Operator rules of mixtures of two predictions."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, DType, Tensor


def wider(a: Tensor, b: Tensor) -> DType:
    """The element type that an operator on both has (c10/core/ScalarType.h, promoteTypes)."""
    return a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype


def difference_of(a: Tensor, b: Tensor) -> Tensor:
    """a - b of one shape: new, of the wider type, nothing saved.

    Backward: 1 new for b, if it needs a gradient; that of a is handed through.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    need_b = b.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad.tape.like("neg", grad) if need_b else None)

    return a.tape.like("sub", a, wider(a, b), a.tape.record("sub", (a, b), backward))


def logsumexp_of_two(a: Tensor, b: Tensor) -> Tensor:
    """torch.logsumexp(torch.stack([a, b]), dim=0): the stack and the result are new.

    The largest values, where they are infinite, and what is left of the stack without them are there meanwhile.
    Saves `stacked`: its share of the sum is the exponential of it less the result.
    Saves `out`: likewise.
    Backward: three as large as the stack together, the last of which is its gradient.
    Source: tools/autograd/derivatives.yaml, logsumexp; torch/csrc/autograd/FunctionsManual.cpp, logsumexp_backward;
    aten/src/ATen/native/ReduceOps.cpp, logsumexp_out_impl.
    """
    tape, shape, dtype, batched = a.tape, a.shape, wider(a, b), a.batched

    def unstacked(grad: Tensor, saved: Saved) -> Grads:
        return (grad.alias(shape, None, None), grad.alias(shape, None, None))

    node = tape.record("stack", (a, b), unstacked)
    stacked = tape.new("stack", (2, *shape), dtype, batched, None, node)
    del a, b

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        _less = tape.new("sub", (2, *shape), dtype, batched)
        power = tape.new("exp", (2, *shape), dtype, batched)
        return (tape.like("mul", power),)

    node = tape.record("logsumexp", (stacked,), backward, (stacked,))
    largest = tape.new("amax", shape, dtype, batched)
    magnitudes = tape.new("abs", shape, dtype, batched)
    infinite = tape.new("eq", shape, BOOL, batched)
    del magnitudes, infinite
    rest = tape.new("sub", (2, *shape), dtype, batched)
    out = tape.new("sum", shape, dtype, batched, None, node)
    del rest, largest
    tape.save(node, out)
    return out
