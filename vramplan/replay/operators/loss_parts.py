"""Operator rules of the small operators that libraries compose losses from: gathering, summing, masking.

What needs no gradient (masks, counts, indices) is allocated where the loss is written.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import BOOL, FP32, DType, Shape, Tensor, contiguous_strides


def gather_last(x: Tensor, index: Tensor) -> Tensor:
    """`x.gather(-1, index)`: new, one value for each index.

    Saves `x`: the gradient has its shape.
    Saves `index`: where the gradient goes.
    Backward: 1 new, as large as x, filled with zeros and the gradient at the indices.
    Source: tools/autograd/derivatives.yaml, gather; torch/csrc/autograd/FunctionsManual.cpp, gather_backward.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        source = saved[0]
        return (source.tape.new("zeros", source.shape, grad.dtype, source.batched),)

    node = x.tape.record("gather", (x,), backward, (x, index))
    return x.tape.new("gather", index.shape, x.dtype, x.batched, None, node)


def sum_last(x: Tensor, dtype: DType | None = None, *, keepdim: bool = False) -> Tensor:
    """`x.sum(-1, dtype=...)`: new, nothing saved, as only the number of elements is needed; autocast asks for fp32.

    Backward: nothing new; the gradient is looked at with stride 0, and cast by the engine if x has another dtype.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList; torch/csrc/autograd/FunctionsManual.cpp, sum_backward.
    """
    shape = x.shape
    one = (*shape[:-1], 1)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.alias(shape, (*contiguous_strides(one)[:-1], 0), None),)

    node = x.tape.record("sum", (x,), backward)
    dtype = dtype or (FP32 if x.tape.autocast is not None else x.dtype)
    return x.tape.new("sum", one if keepdim else shape[:-1], dtype, bool(x.batched), None, node)


def sum_all(x: Tensor) -> Tensor:
    """`x.sum()` and, but for a factor, `x.mean()`: new, a scalar; nothing saved.

    Backward: nothing new; the gradient is looked at with stride 0.
    Source: tools/autograd/derivatives.yaml, sum; torch/csrc/autograd/FunctionsManual.cpp, sum_backward.
    """
    shape, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        wide = grad.alias(shape, (0,) * len(shape), None)
        wide.batched = batched
        return (wide,)

    return x.tape.new("sum", (), x.dtype, False, None, x.tape.record("sum", (x,), backward))


def masked_fill_in_place(x: Tensor, mask: Tensor) -> Tensor:
    """`x.masked_fill_(mask, number)`: the storage of x.

    Saves `mask`: backward drops the gradient where the value was replaced.
    Backward: 1 new, the gradient with zeros at the mask.
    Source: tools/autograd/derivatives.yaml, masked_fill.Scalar.
    """
    return x.alias(x.shape, x.strides, x.tape.record("masked_fill", (x,), _masked, (mask,)))


def _masked(grad: Tensor, saved: Saved) -> Grads:
    return (grad.tape.like("masked_fill", grad),)


def log_sigmoid(x: Tensor) -> Tensor:
    """`F.logsigmoid(x)`: new; its buffer is empty on CUDA.

    Saves `x`: the slope is a function of x.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, log_sigmoid_forward; aten/src/ATen/native/Activation.cpp.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("log_sigmoid_backward", grad),)

    return x.tape.like("log_sigmoid", x, None, x.tape.record("log_sigmoid", (x,), backward, (x,)))


def log1mexp(x: Tensor) -> Tensor:
    """`log1mexp(x)`, the logarithm of 1 - e^x by two ways and the choice between them: new.

    Saves `choice`: the gradient goes the way that was chosen.
    Saves `exp`: its gradient is the incoming one times it.
    Saves `rest`: log1p divides the gradient by 1 and this.
    Saves `expm1`: its gradient is the incoming one times 1 and this.
    Saves `away`: the logarithm divides the gradient by it.
    Backward: 1 new.
    Source: trl 1.16.0, experimental/orpo/orpo_trainer.py, log1mexp; tools/autograd/derivatives.yaml, where, log1p, log,
    exp and expm1.
    """
    tape = x.tape
    choice = tape.new("lt", x.shape, BOOL, x.batched)
    exp, rest = tape.like("exp", x), tape.like("neg", x)
    expm1, away = tape.like("expm1", x), tape.like("neg", x)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("mul", grad),)

    return tape.like("where", x, None, tape.record("log1mexp", (x,), backward, (choice, exp, rest, expm1, away)))


def shifted(x: Tensor, shape: Shape) -> Tensor:
    """`x[:, 1:]` of what needs no gradient: a view.

    Source: aten/src/ATen/native/TensorShape.cpp, slice.
    """
    strides = None if shape[0] == 1 else x.strides or contiguous_strides(x.shape)
    return x.alias(shape, strides, None)
