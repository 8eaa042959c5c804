"""Operator rules of low-rank changes that are folded into a whole weight before it is used."""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.operators.views import Grads, autocast_half
from vramplan.replay.recorder import Saved, Tape, rounded
from vramplan.replay.tensors import Parameter, Tensor, contiguous_strides


def fold(weight: Tensor, a: Tensor, b: Tensor, *, scaled: bool) -> Tensor:
    """weight + number * (a @ b) of stacked matrices [E, m, k] x [E, k, n], in the dtype of the weight: new.

    Autocast is switched off around it. A matrix of which no stride is 1 is copied inside the kernel.
    Saves `a`: the gradient of the second factor is the first, transposed, times the incoming one.
    Saves `b`: the gradient of the first factor is the incoming one times the second, transposed.
    Backward: for the first factor, then for the second, a product and, unless the number is 1 (`scaled`), that product
    times the number.
    Source: tools/autograd/derivatives.yaml, baddbmm; torch/csrc/autograd/FunctionsManual.cpp, maybe_multiply;
    aten/src/ATen/native/cuda/Blas.cpp, prepare_batch_matrix_for_cublas; peft 0.21.2, tuners/lora/layer.py,
    _LoraFactorsProxy.forward.
    """
    tape, dtype = weight.tape, weight.dtype
    a_shape, b_shape = a.shape, b.shape
    count, m, k = a_shape
    n = b_shape[2]
    work = 2 * count * m * k * n
    copies_a, copies_b = copied_bytes(a), copied_bytes(b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        of_a = tape.new("bmm", a_shape, dtype, False)
        _scratch(tape, "bmm", copies_b)
        of_a = mul_scalar(of_a) if scaled else of_a
        of_b = tape.new("bmm", b_shape, dtype, False)
        _scratch(tape, "bmm", copies_a)
        return (of_a, mul_scalar(of_b) if scaled else of_b)

    node = tape.record("baddbmm", (a, b), backward, (a, b))
    tape.work(work)
    out = tape.new("baddbmm", (count, m, n), dtype, False, None, node)
    _scratch(tape, "baddbmm", copies_a + copies_b)
    return out


def copied_bytes(x: Tensor) -> int:
    """Bytes of the copy of a stack of matrices that cuBLAS cannot read as it is; transposed it is the same."""
    _, rows, columns = x.shape
    _, row, column = x.strides or contiguous_strides(x.shape)
    readable = (row == 1 and column >= rows) or (column == 1 and row >= columns)
    return 0 if readable or x.strides is None else rounded(prod(x.shape) * x.dtype.itemsize)


def _scratch(tape: Tape, operator: str, size: int) -> None:
    if size:
        tape.workspace(operator, lambda _: size)


def factors_product(a: Parameter, b: Parameter) -> Tensor:
    """`a @ b` of two small weights [m, k] x [k, n]: new.

    Autocast casts b, then a, and keeps both casts.
    Saves `first`: the gradient of b is a, transposed, times the incoming one.
    Saves `second`: the gradient of a is the incoming one times b, transposed.
    Backward: the gradient of b first, then that of a.
    Source: tools/autograd/derivatives.yaml, mm; peft 0.21.2, tuners/lora/layer.py, Linear.get_delta_weight.
    """
    tape, a_shape, b_shape = a.tape, a.shape, b.shape
    second = autocast_half(b)
    first = autocast_half(a)
    work = 2 * prod(a_shape) * b_shape[1]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        of_b = tape.new("mm", b_shape, grad.dtype, False)
        return (tape.new("mm", a_shape, grad.dtype, False), of_b)

    node = tape.record("mm", (first, second), backward, (first, second))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("mm", (a_shape[0], b_shape[1]), first.dtype, False, None, node)
    if tape.selective:
        tape.keep(True, out)
    return out
