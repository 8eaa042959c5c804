"""Operator rules of attention that is linear in the sequence: a convolution of each channel, sums along a chunk,
triangular systems, and results that are written into their place one chunk after the other.

B is the micro-batch, S the sequence, C channels, H heads, N chunks.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.layouts import has_channels_last
from vramplan.replay.operators.latent import copy_slices
from vramplan.replay.operators.views import Grads, autocast_float, autocast_half
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import DType, Shape, Tensor, dense_like, normalised


def conv_of_channels(x: Tensor, weight: Tensor, padding: int, bias: Tensor | None = None) -> Tensor:
    """`F.conv1d` of [B, C, S] with a kernel for each channel, weight [C, 1, k]: new, [B, C, S + 2 padding - k + 1].

    Autocast casts bias, weight and x. Channels that lie side by side are copied apart before the kernel runs, in
    backward again; the kernel needs nothing else.
    Saves `x`: the gradient of the weight is x correlated with the incoming one.
    Saves `w`: the gradient of x is the incoming one convolved with the weight turned round.
    Backward: the gradients of x, of the weight and of the bias, each only if it is wanted.
    Source: tools/autograd/derivatives.yaml, convolution; aten/src/ATen/native/Convolution.cpp, _convolution and
    convolution_backward: `input.contiguous()` of one dimension; cuda/DepthwiseConv2d.cu.
    """
    tape = x.tape
    b = None if bias is None else autocast_half(bias)
    w = autocast_half(weight)
    x = autocast_half(x)
    batch, channels, length = x.shape
    kernel = w.shape[2]
    x_shape, w_shape, batched = x.shape, w.shape, x.batched
    need_x, need_w, need_b = (one is not None and one.node is not None for one in (x, w, b))
    size = length + 2 * padding - kernel + 1
    work = 2 * batch * channels * size * kernel
    copied = [] if x.strides is None else [batch // tape.batch * channels * length * x.dtype.itemsize]

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * (need_x + need_w))
        gx = tape.new("convolution_backward", x_shape, grad.dtype, batched) if need_x else None
        gw = tape.new("convolution_backward", w_shape, grad.dtype, False) if need_w else None
        gb = tape.new("convolution_backward", (channels,), grad.dtype, False) if need_b else None
        tape.scratch("convolution_backward", copied)
        return (gx, gw, gb)

    node = tape.record("convolution", (x, w, b), backward, (x, w))
    kept = tape.recall() if tape.selective else None
    if kept is not None:
        return kept[0].alias(kept[0].shape, None, node)
    tape.work(work)
    out = tape.new("convolution", (batch, channels, size), x.dtype, batched, None, node)
    tape.scratch("convolution", copied)
    if tape.selective:
        tape.keep(False, out)
    return out


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)): autocast to fp32, then new.

    Saves `x`: the slope is a sigmoid of it.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, softplus.
    """
    x = autocast_float(x)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("softplus_backward", grad),)

    return x.tape.like("softplus", x, None, x.tape.record("softplus", (x,), backward, (x,)))


def cumsum(x: Tensor) -> Tensor:
    """`x.cumsum(dim)`, along whichever dimension: new, contiguous, nothing saved.

    Backward: the gradient turned round, summed up and turned round again: 3 new, of which the last remains.
    Source: tools/autograd/derivatives.yaml, cumsum; torch/csrc/autograd/FunctionsManual.cpp, cumsum_backward.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        turned = tape.like("flip", grad)
        sums = tape.new("cumsum", turned.shape, turned.dtype, turned.batched)
        result = tape.like("flip", sums)
        del turned, sums
        return (result,)

    node = x.tape.record("cumsum", (x,), backward)
    return x.tape.new("cumsum", x.shape, x.dtype, x.batched, None, node)


def pad(x: Tensor, dim: int, amount: int) -> Tensor:
    """`F.pad` at an end of a dimension: new, nothing saved; without padding a copy that lies as x does.

    With padding it is contiguous, or has its channels last where x has.
    Backward: 1 new, a copy of the part that was not padded.
    Source: tools/autograd/derivatives.yaml, constant_pad_nd; aten/src/ATen/native/PadNd.cpp.
    """
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        strides = None if grad.strides is None else dense_like(before, grad.strides)
        return (tape.new("constant_pad_nd_backward", before, grad.dtype, grad.batched, strides),)

    node = x.tape.record("constant_pad_nd", (x,), backward)
    if not amount:
        return x.tape.like("constant_pad_nd", x, None, node)
    dim %= len(before)
    shape = (*before[:dim], before[dim] + amount, *before[dim + 1 :])
    strides = dense_like(shape, x.strides) if has_channels_last(x.shape, x.strides) else None
    return x.tape.new("constant_pad_nd", shape, x.dtype, x.batched, strides, node)


def to_row_major(x: Tensor, dtype: DType) -> Tensor:
    """`x.to(dtype, memory_format=torch.contiguous_format)`: new, row by row.

    It is x itself if that has the dtype, however it lies, unless it looks like an image with its channels last.
    Backward: 1 new, the gradient cast back.
    Source: tools/autograd/derivatives.yaml, _to_copy; aten/src/ATen/native/TensorConversions.cpp, to_will_alias.
    """
    if x.dtype is dtype and not has_channels_last(x.shape, x.strides):
        return x
    source = x.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad if grad.dtype is source else grad.tape.like("to", grad, source),)

    return x.tape.new("to", x.shape, dtype, x.batched, None, x.tape.record("to", (x,), backward))


def times_mask(x: Tensor, mask: Tensor) -> Tensor:
    """x [B, S, H] * mask [B, S, 1] of whole numbers: new, of the dtype of x.

    Saves `mask`: the gradient is the incoming one times it.
    Backward: 1 new.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("mul", grad),)

    return x.tape.like("mul", x, None, x.tape.record("mul", (x,), backward, (mask,)))


def solve_triangular(a: Tensor, b: Tensor) -> Tensor:
    """`torch.linalg.solve_triangular(a, b)` of [B, H, N, n, n] and [B, H, N, n, m]: new, its columns one by one.

    Saves `a`: the gradient of b is the solution of the transposed system.
    Saves `out`: the gradient of a is that one, negated, times the solution.
    Backward: the gradient of b; then the product, negated, and its triangle.
    Source: tools/autograd/derivatives.yaml, linalg_solve_triangular; torch/csrc/autograd/FunctionsManual.cpp,
    linalg_solve_triangular_backward; aten/src/ATen/native/BatchLinearAlgebra.cpp, linalg_solve_triangular_out.
    """
    tape, batched = a.tape, a.batched
    *many, n, m = b.shape
    count = prod(many)
    by_column = _by_column(b.shape)
    work = count * n * n * m
    need_a = a.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        tape.work(work * 3)
        of_b = tape.new("linalg_solve_triangular", (*many, n, m), grad.dtype, batched, by_column)
        if not need_a:
            return (None, of_b)
        product = tape.new("bmm", (*many, n, n), grad.dtype, batched)
        negated = tape.like("neg", product)
        del product
        of_a = tape.like("tril", negated)
        del negated
        return (of_a, of_b)

    node = tape.record("linalg_solve_triangular", (a, b), backward, (a,))
    tape.work(work)
    out = tape.new("linalg_solve_triangular", b.shape, b.dtype, batched, by_column, node)
    tape.save(node, out)
    return out


def _by_column(shape: Shape) -> Shape | None:
    """The strides of matrices whose columns lie one after the other."""
    *many, n, m = shape
    strides, step = [1, n], n * m
    for size in reversed(many):
        strides.insert(0, step)
        step *= size
    return normalised(shape, tuple(strides))


def into_place(whole: Tensor, part: Tensor) -> Tensor:
    """`whole[:, :, i] = part` of [B, H, N, n, m]: the storage of the whole, nothing saved.

    Backward: the gradient of the whole copied, and that of the place cloned out of it; zeros for what was there, and a
    part of another dtype is cast beside them.
    Source: torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply and CopyBackwards::apply.
    """
    before = whole if whole.node is not None else None
    place = None if whole.strides is None else (*whole.strides[:2], *whole.strides[3:])
    return whole.alias(whole.shape, whole.strides, copy_slices(whole, part, before, place))
