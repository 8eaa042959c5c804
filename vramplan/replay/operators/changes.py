"""Operator rules of adapters that make a whole change of a weight: products of matrices, Hadamard's and Kronecker's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vramplan.replay.operators.elementwise import mul, mul_scalar
from vramplan.replay.operators.views import Grads, autocast_float, autocast_half, to, view
from vramplan.replay.recorder import Saved, Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, DType, Parameter, Tensor, contiguous_strides, normalised


@contextmanager
def without_gradients(tape: Tape) -> Iterator[None]:
    """The forward of an autograd.Function, in which nothing is recorded."""
    before, tape.no_grad = tape.no_grad, True
    try:
        yield
    finally:
        tape.no_grad = before


def wider(a: DType, b: DType) -> DType:
    """What two element types promote to."""
    return a if a.itemsize >= b.itemsize else b


def mm(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of two matrices [m, k] x [k, n]: new.

    Autocast casts b, then a.
    Saves `a`: the gradient of b is a, transposed, times the incoming one; only if b needs a gradient.
    Saves `b`: the gradient of a is the incoming one times b, transposed; only if a needs a gradient.
    Backward: the gradient of b first, then that of a.
    Source: tools/autograd/derivatives.yaml, mm.
    """
    tape, a_shape, b_shape = a.tape, a.shape, b.shape
    second = autocast_half(b)
    first = autocast_half(a)  # a and b live until the product is there
    need_a, need_b = a.node is not None, b.node is not None
    work = 2 * a_shape[0] * a_shape[1] * b_shape[1]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_a + need_b))
        of_b = tape.new("mm", b_shape, grad.dtype, False) if need_b else None
        return (tape.new("mm", a_shape, grad.dtype, False) if need_a else None, of_b)

    saves = [one for one, other in ((first, need_b), (second, need_a)) if other]
    node = tape.record("mm", (first, second), backward, saves)
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("mm", (a_shape[0], b_shape[1]), first.dtype, False, None, node)
    if tape.selective:
        tape.keep(True, out)
    return out


def hadamard(w1a: Parameter, w1b: Parameter, w2a: Parameter, w2b: Parameter) -> Tensor:
    """The product, element by element, of two products of thin matrices, times a number: new.

    Autocast casts the four, and keeps the casts, of which no gradient comes through.
    Saves `weights`: all four as they are, for the other product and the gradients of the pair.
    Backward: outside of autocast. The incoming gradient times the number; then for each pair the other product, which
    the gradient is multiplied by, and from that the gradients of the pair. The second such product is made while the
    first is there.
    Source: peft 0.21.2, tuners/loha/layer.py, HadaWeight.
    """
    tape, weights = w1a.tape, (w1a, w1b, w2a, w2b)
    shapes, dtype = [one.shape for one in weights], w1a.dtype
    whole = (w1a.shape[0], w1b.shape[1])
    work = 2 * whole[0] * whole[1] * w1a.shape[1]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(6 * work)
        grad = tape.like("mul", grad)
        found: list[Tensor] = []
        temp: Tensor | None = None
        for pair in (shapes[:2], shapes[2:]):
            product = tape.new("mm", whole, dtype, False)
            temp = tape.new("mul", whole, wider(grad.dtype, dtype), False)
            del product
            found += [tape.new("mm", shape, temp.dtype, False) for shape in pair]
        return tuple(found)

    node = tape.record("HadaWeight", weights, backward)
    with without_gradients(tape):
        first = mm(w1a, w1b)
        product = mul(first, mm(w2a, w2b))
        del first
        out = tape.like("mul", product, None, node)
    tape.save(node, *weights)
    return out


def kron(a: Tensor, b: Tensor) -> Tensor:
    """`torch.kron` of two matrices: new, with promotion. Saved and backward as of a product element by element.

    Source: aten/src/ATen/native/LinearAlgebra.cpp, KronImpl.
    """
    (outer, across), (inner, along) = a.shape, b.shape
    wide = mul(view(a, (outer, 1, across, 1)), view(b, (1, inner, 1, along)))
    return view(wide, (outer * inner, across * along))


def sum_groups(x: Tensor) -> Tensor:
    """`torch.sum(x, dim=-2)`: new, under autocast in fp32; nothing saved.

    Backward: nothing new, the gradient expanded.
    Source: tools/autograd/derivatives.yaml, sum.dim_IntList; aten/src/ATen/autocast_mode.h,
    AT_FORALL_FP32_SET_OPT_DTYPE.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = grad.strides or contiguous_strides(grad.shape)
        return (grad.alias(whole, normalised(whole, (*strides[:-1], 0, strides[-1])), None),)

    node = x.tape.record("sum", (x,), backward)
    dtype = x.dtype if x.tape.autocast is None else FP32
    return x.tape.new("sum", (*whole[:-2], whole[-1]), dtype, x.batched, None, node)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b of one shape, with promotion: new, nothing saved.

    Backward: 1 new, the negated gradient for b, which the engine casts to it; a gets the gradient itself.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    need_a = a.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad if need_a else None, grad.tape.like("neg", grad))

    node = a.tape.record("sub", (a, b), backward)
    return a.tape.like("sub", a, wider(a.dtype, b.dtype), node)


def column_norms(x: Tensor) -> Tensor:
    """`x.norm(dim=0)` of a matrix: new, one number for each column; autocast to fp32.

    Saves `x`: the gradient is x over the norm times the incoming one.
    Saves `out`: it is that norm.
    Backward: the quotient and where the norm is 0 are there beside the result.
    Source: tools/autograd/derivatives.yaml, linalg_vector_norm; FunctionsManual.cpp, norm_backward.
    """
    x = autocast_float(x)
    shape = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        quotient = tape.new("div", shape, grad.dtype, False)
        mask = tape.new("eq", (1, shape[1]), BOOL, False)
        result = tape.new("mul", shape, grad.dtype, False)
        del quotient, mask
        return (result,)

    node = x.tape.record("linalg_vector_norm", (x,), backward, (x,))
    out = x.tape.new("linalg_vector_norm", (shape[1],), x.dtype, False, None, node)
    x.tape.save(node, out)
    return out


def inverse_fft(spectrum: Tensor, outputs: int, inputs: int) -> Tensor:
    """The real part of `torch.fft.ifft2` of a matrix with these numbers at places that are random: new, in fp32.

    The places come from the host, and are there until backward. Nobody computes in complex numbers but the transform,
    which the matrix is made complex for.
    Saves `places`: the gradient of the numbers is that of the matrix there.
    Backward: a complex gradient with zeros as imaginary part, its transform, and the numbers at the places.
    Source: peft 0.21.2, tuners/fourierft/layer.py, get_delta_weight; tools/autograd/derivatives.yaml, index_put_,
    _fft_c2c and select.int.
    """
    tape, count, whole = spectrum.tape, spectrum.shape, (outputs, inputs)
    real_part = (2 * inputs, 2)

    def of_places(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index", count, FP32, False),)

    def of_real(grad: Tensor, saved: Saved) -> Grads:
        return (grad.alias(whole, real_part, None),)

    def of_transform(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("_fft_c2c", (*whole, 2), FP32, False),)

    def of_part(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("select_backward", (*whole, 2), FP32, False),)

    places = tape.new("to", (2, *count), INT64, False)
    dense = tape.new("zeros", whole, FP32, False)
    values = to(spectrum, FP32)
    dense = dense.alias(whole, None, tape.record("index_put_", (values,), of_places, (places,)))
    del values
    numbers = tape.new("to", (*whole, 2), FP32, False, None, tape.record("to", (dense,), of_real))
    turned = tape.new("_fft_c2c", (*whole, 2), FP32, False, None, tape.record("_fft_c2c", (numbers,), of_transform))
    del numbers
    part = turned.alias(whole, real_part, tape.record("select", (turned,), of_part))
    del turned
    return mul_scalar(part)


def scaled_bases(bases: Tensor, rows: Parameter, columns: Parameter) -> Tensor:
    """`rows[:, :, None] * bases * columns[None]` of [r, n], [r, 1, d] and [n, d], as one function: new, [r, n, d].

    Saves `bases`: both gradients are the incoming one times them.
    Saves `rows`: the gradient of the columns has them as a factor.
    Saves `columns`: the gradient of the rows has them as a factor.
    Backward: for the rows, then for the columns, the incoming gradient times the bases, and of that one product; the
    former goes before the latter is made.
    Source: peft 0.21.2, tuners/randlora/layer.py, UniqueBaseGrad.
    """
    tape, row_shape, column_shape = bases.tape, rows.shape, columns.shape
    whole = (*row_shape, column_shape[1])
    work = 2 * row_shape[0] * row_shape[1] * column_shape[1]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(2 * work)
        found = []
        for shape in (row_shape, column_shape):
            _times = tape.new("mul", whole, grad.dtype, False)
            found.append(tape.new("bmm", shape, grad.dtype, False))
            del _times
        return (None, *found)

    node = tape.record("UniqueBaseGrad", (bases, rows, columns), backward)
    dtype = wider(bases.dtype, rows.dtype)
    _first = tape.new("mul", whole, dtype, False)
    out = tape.new("mul", whole, dtype, False, None, node)
    tape.save(node, bases, rows, columns)
    return out
