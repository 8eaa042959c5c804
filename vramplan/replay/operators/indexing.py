"""Operator rules of slices with a step, stacks and lists of indices, and of operators that write into their input."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import INT64, Tensor, contiguous_strides, normalised


def every_second(x: Tensor) -> Tensor:
    """`x[..., ::2]` or `x[..., 1::2]`: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its places (`slice_backward`).
    Source: tools/autograd/derivatives.yaml, slice.Tensor.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("slice_backward", whole, grad.dtype, grad.batched),)

    shape = (*whole[:-1], whole[-1] // 2)
    old = x.strides or contiguous_strides(whole)
    strides = normalised(shape, (*old[:-1], 2 * old[-1]))
    return x.alias(shape, strides, x.tape.record("slice", (x,), backward))


def stack_last(tensors: list[Tensor], size: int | None = None) -> Tensor:
    """`torch.stack(tensors, dim=-1)`: new, contiguous, nothing saved.

    `size`: how many they are, where some of them stand for several.
    Backward: nothing new; each input gets a view of the gradient.
    Source: tools/autograd/derivatives.yaml, stack; aten/src/ATen/native/TensorShape.cpp, stack.
    """
    count = len(tensors)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = grad.strides or contiguous_strides(grad.shape)
        shape = grad.shape[:-1]
        return tuple(grad.alias(shape, normalised(shape, strides[:-1]), None) for _ in range(count))

    first = tensors[0]
    node = first.tape.record("stack", tensors, backward)
    return first.tape.new("stack", (*first.shape, size or count), first.dtype, first.batched, None, node)


def index_one(x: Tensor, dim: int) -> Tensor:
    """`x[..., [i], :]`, one place along a dimension by a list of indices: new, and the index itself.

    Saves `index`: the gradient goes to that place.
    Backward: 1 new, a zero-filled tensor of the whole, into which the gradient is put; the few indices that are sorted
    there are left out.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    dim %= len(x.shape)
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_put", whole, grad.dtype, grad.batched),)

    tape = x.tape
    index = tape.new("to", (1,), INT64, False)
    node = tape.record("index", (x,), backward, (index,))
    return tape.new("index", (*whole[:dim], 1, *whole[dim + 1 :]), x.dtype, x.batched, None, node)


def index_rows_of(x: Tensor, places: Tensor) -> Tensor:
    """`x[torch.arange(B), places]` of x [B, S, C] and places [B]: new, [B, C], and the numbers of the samples.

    Saves `samples`: the gradient goes to those places.
    Saves `places`: the same.
    Backward: 1 new, a zero-filled tensor of the whole, into which the gradient is put; the few indices that are sorted
    there are left out.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    tape, whole = x.tape, x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("index_put", whole, grad.dtype, grad.batched),)

    samples = tape.new("arange", (whole[0],), INT64, True)
    node = tape.record("index", (x,), backward, (samples, places))
    return tape.new("index", (whole[0], whole[2]), x.dtype, x.batched, None, node)


def scale_in_place(x: Tensor) -> Tensor:
    """x *= number, or x /= number: the storage of x, nothing saved.

    Backward: 1 new, the gradient times the number.
    Source: tools/autograd/derivatives.yaml, mul.Scalar and div.Scalar.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("mul", grad),)

    return x.alias(x.shape, x.strides, x.tape.record("mul", (x,), backward))


def scale_in_place_by(x: Tensor, by: Tensor) -> Tensor:
    """x *= by, where by is a number on the device, [1], that needs no gradient: the storage of x.

    Saves `by`: the gradient is the incoming one times it.
    Backward: 1 new, the gradient times the number, in the wider of both types.
    Source: tools/autograd/derivatives.yaml, mul.Tensor.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        wide = saved[0].dtype if saved[0].dtype.itemsize > grad.dtype.itemsize else grad.dtype
        return (grad.tape.like("mul", grad, wide),)

    return x.alias(x.shape, x.strides, x.tape.record("mul_", (x,), backward, (by,)))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """`x.unsqueeze(dim)`: a view with one more dimension of size 1, nothing new.

    Backward: the gradient without that dimension, nothing new.
    Source: tools/autograd/derivatives.yaml, unsqueeze.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        old = grad.strides or contiguous_strides(grad.shape)
        squeezed = (*grad.shape[:dim], *grad.shape[dim + 1 :])
        return (grad.alias(squeezed, normalised(squeezed, (*old[:dim], *old[dim + 1 :])), None),)

    strides = x.strides or contiguous_strides(x.shape)
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    step = strides[dim] * x.shape[dim] if dim < len(strides) else 1
    wide = (*strides[:dim], step, *strides[dim:])
    node = None if x.node is None else x.tape.record("unsqueeze", (x,), backward)
    return x.alias(shape, normalised(shape, wide), node)


def permute(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """`x.permute(order)`: a view, nothing new.

    Backward: the gradient in the old order, nothing new.
    Source: tools/autograd/derivatives.yaml, permute.
    """
    back = tuple(order.index(i) for i in range(len(order)))

    def backward(grad: Tensor, saved: Saved) -> Grads:
        shape, strides = _ordered(grad, back)
        return (grad.alias(shape, strides, None),)

    shape, strides = _ordered(x, order)
    return x.alias(shape, strides, None if x.node is None else x.tape.record("permute", (x,), backward))


def _ordered(x: Tensor, order: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    strides = x.strides or contiguous_strides(x.shape)
    shape = tuple(x.shape[i] for i in order)
    return shape, normalised(shape, tuple(strides[i] for i in order))


def split_along(x: Tensor, sizes: tuple[int, ...], dim: int) -> list[Tensor]:
    """`x.split([a, b, ...], dim)` of which every part gets a gradient: views, nothing new.

    Backward: 1 new, the gradients of the parts concatenated.
    Source: tools/autograd/derivatives.yaml, split_with_sizes.
    """
    whole = x.shape

    def backward(grads: Sequence[Tensor], saved: Saved) -> Grads:
        first = grads[0]
        return (first.tape.new("cat", whole, first.dtype, first.batched),)

    node = x.tape.record("split", (x,), backward)
    strides = x.strides or contiguous_strides(whole)
    shapes = [(*whole[:dim], size, *whole[dim + 1 :]) for size in sizes]
    return [x.alias(shape, normalised(shape, strides), node, i) for i, shape in enumerate(shapes)]


def split_with_sizes(x: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """`x.split([a, b, ...], -1)` of which every part gets a gradient: views, nothing new.

    Backward: 1 new, the gradients of the parts concatenated.
    Source: tools/autograd/derivatives.yaml, split_with_sizes.
    """
    return split_along(x, sizes, len(x.shape) - 1)
