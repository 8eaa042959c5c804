"""Operator rules that adapters need beside those of models."""

from __future__ import annotations

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads, same
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import DType, Tensor, dense_like


def eye(tape: Tape, size: int, dtype: DType) -> Tensor:
    """`torch.eye`: new, [n, n], made without gradients.

    Source: aten/src/ATen/native/TensorFactories.cpp, eye.
    """
    return tape.new("eye", (size, size), dtype, False)


def div(a: Tensor, b: Tensor) -> Tensor:
    """a / b of one shape with promotion, where b needs no gradient: new.

    Saves `b`: the gradient is the incoming one divided by it.
    Backward: 1 new, the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("div", grad), None)

    node = a.tape.record("div", (a, b), backward, (b,))
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    return a.tape.like("div", a, dtype, node)


def div_by_one(x: Tensor, divisor: Tensor) -> Tensor:
    """x / one number in a tensor of one dimension that needs no gradient, with promotion: new.

    Saves `divisor`: the gradient is the incoming one divided by it.
    Backward: 1 new, the gradient divided.
    Source: tools/autograd/derivatives.yaml, div.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("div", grad),)

    node = x.tape.record("div", (x,), backward, (divisor,))
    dtype = x.dtype if x.dtype.itemsize >= divisor.dtype.itemsize else divisor.dtype
    return x.tape.like("div", x, dtype, node)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b with promotion, where b needs no gradient: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    shape, lead = broadcast(a, b)
    dtype = a.dtype if a.dtype.itemsize >= b.dtype.itemsize else b.dtype
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("sub", shape, dtype, a.batched or b.batched, strides, a.tape.record("sub", (a,), same))


def row_norms(x: Tensor) -> Tensor:
    """`torch.linalg.norm(x, dim=1)` of a matrix that needs no gradient: new, one number for each row.

    Source: aten/src/ATen/native/LinearAlgebra.cpp, linalg_norm.
    """
    return x.tape.new("linalg_vector_norm", (x.shape[0],), x.dtype, x.batched)
