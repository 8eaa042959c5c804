"""Operator rules of orthogonal adapters: small skew matrices, and a series of their powers."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Shape, Tensor


def upper_halves(vectors: Tensor, shape: Shape) -> Tensor:
    """`zeros[:, rows, columns] = vectors`: new, [n, m, m]; the places are buffers, which a graph keeps anyway.

    Backward: 1 new, the numbers of the gradient at those places.
    Source: tools/autograd/derivatives.yaml, index_put_; torch/csrc/autograd/python_variable_indexing.cpp.
    """
    tape, given = vectors.tape, vectors.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index", given, grad.dtype, False),)

    node = tape.record("index_put_", (vectors,), backward)
    return tape.new("zeros", shape, vectors.dtype, False, None, node)


def repeat(x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1, 1)` of a matrix that needs no gradient: new.

    Source: aten/src/ATen/native/TensorShape.cpp, repeat.
    """
    return x.tape.new("repeat", (times, *x.shape), x.dtype, False)


def add_multiple(a: Tensor, b: Tensor, *, once: bool = False) -> Tensor:
    """`a.add_(b, alpha=2)`, or of `b` itself: the storage of a, in its dtype; nothing saved.

    Backward: 1 new, the gradient times the number, for b, which the engine casts to it; none where it is 1.
    Source: tools/autograd/derivatives.yaml, add.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad if once else grad.tape.like("mul", grad))

    return a.alias(a.shape, a.strides, a.tape.record("add_", (a, b), backward))
