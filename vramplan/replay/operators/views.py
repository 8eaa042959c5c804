"""Operator rules of casts and views: what copies, what only looks at the same storage in another way."""

from __future__ import annotations

from typing import Any

from vramplan.replay.observers import Sharding
from vramplan.replay.recorder import Saved, begins_graph
from vramplan.replay.tensors import (
    FP32,
    DType,
    Parameter,
    Shape,
    Tensor,
    contiguous_strides,
    dense_like,
    normalised,
    reshape_gradient,
    view_strides,
)

Grads = tuple[Tensor | None, ...]

# ------------------------------------------------------------------------------------------------------------ casts


def to(x: Tensor, dtype: DType, *, category: str | None = None) -> Tensor:
    """`x.to(dtype)`: new, nothing saved, as a cast is linear; the same tensor if it already has the dtype.

    Backward: 1 new, the gradient cast back.
    Source: tools/autograd/derivatives.yaml, _to_copy; aten/src/ATen/native/TensorConversions.cpp.
    """
    if x.dtype is dtype:
        return x
    source = x.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.like("to", grad, source),)

    tape = x.tape
    node = tape.record("to", (x,), backward)
    strides = None if x.strides is None else dense_like(x.shape, x.strides)
    return tape.new("to", x.shape, dtype, x.batched, strides, node, category)


def autocast_half(x: Tensor) -> Tensor:
    """The cast that autocast puts before a matrix product.

    fp32 weights that need gradients are cast once per autocast context and kept until it ends, and so are other leaves:
    embeddings that were asked for a gradient, and the input of a reentrant checkpoint that is computed again.
    Anything else is cast at each use, weights that are views of another tensor among it.
    Source: aten/src/ATen/autocast_mode.cpp, cached_cast.
    """
    tape = x.tape
    dtype = tape.autocast
    if dtype is None or x.dtype is not FP32:
        return x
    is_leaf = type(x) is Parameter and not tape.role(Sharding).weights_are_views
    if x.node is not None and (is_leaf or begins_graph(x.node)):
        cast = tape.casts.get(x.node)
        if cast is None:
            cast = tape.casts[x.node] = to(x, dtype, category="weight_casts" if type(x) is Parameter else None)
        return cast
    return to(x, dtype, category="weight_casts" if type(x) is Parameter else None)


def autocast_float(x: Tensor) -> Tensor:
    """The cast that autocast puts before an operator of its fp32 list: normalisation, pow, losses.

    Source: aten/src/ATen/autocast_mode.h, AT_FORALL_FP32.
    """
    return x if x.tape.autocast is None else to(x, FP32)


# ------------------------------------------------------------------------------------------------------------ views


def view(x: Tensor, shape: Shape) -> Tensor:
    """`x.view(shape)` where strides allow it, which is nothing new, else `x.reshape(shape)`, which copies.

    Backward: the gradient, reshaped back.
    Source: tools/autograd/derivatives.yaml, view; aten/src/ATen/TensorUtils.cpp, computeStride.
    """
    possible, strides = view_strides(x.shape, x.strides, shape)
    if not possible:
        x = contiguous(x)
        strides = None
    if x.node is None:
        return x.alias(shape, strides, None)
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (reshape_gradient(grad, before),)

    return x.alias(shape, strides, x.tape.record("view", (x,), backward))


def contiguous(x: Tensor) -> Tensor:
    """`x.contiguous()`: a copy if it is not contiguous.

    Backward: nothing new; the gradient is handed through.
    Source: aten/src/ATen/native/TensorProperties.cpp, contiguous.
    """
    if x.strides is None:
        return x
    return clone(x)


def clone(x: Tensor) -> Tensor:
    """`x.clone(memory_format=torch.contiguous_format)`: new, nothing saved.

    Backward: nothing new; the gradient is handed through.
    Source: tools/autograd/derivatives.yaml, clone.
    """
    node = x.tape.record("clone", (x,), same)
    return x.tape.new("clone", x.shape, x.dtype, x.batched, None, node)


def same(grad: Tensor, saved: Saved) -> Grads:
    """Backward of what hands its gradient through."""
    return (grad,)


def transpose(x: Tensor, i: int, j: int) -> Tensor:
    """`x.transpose(i, j)`: a view, nothing new.

    Backward: the same view of the gradient.
    Source: tools/autograd/derivatives.yaml, transpose.int.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        shape, strides = _swap(grad, i, j)
        return (grad.alias(shape, strides, None),)

    shape, strides = _swap(x, i, j)
    node = None if x.node is None else x.tape.record("transpose", (x,), backward)
    return x.alias(shape, strides, node)


def _swap(x: Tensor, i: int, j: int) -> tuple[Shape, Shape | None]:
    shape, strides = list(x.shape), list(x.strides or contiguous_strides(x.shape))
    shape[i], shape[j] = shape[j], shape[i]
    strides[i], strides[j] = strides[j], strides[i]
    return tuple(shape), normalised(tuple(shape), tuple(strides))


def narrow(x: Tensor, dim: int, length: int) -> Tensor:
    """`x[..., :length]` along a dimension: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its place (`slice_backward`).
    Source: tools/autograd/derivatives.yaml, slice.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    slice_backward_wrapper.
    """
    dim %= len(x.shape)
    if x.shape[dim] == length:
        return x
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("slice_backward", whole, grad.dtype, grad.batched),)

    shape = (*whole[:dim], length, *whole[dim + 1 :])
    strides = normalised(shape, x.strides or contiguous_strides(whole))
    return x.alias(shape, strides, x.tape.record("slice", (x,), backward))


def after(x: Tensor, dim: int, start: int) -> Tensor:
    """`x[:, start:]` along a dimension: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its place (`slice_backward`).
    Source: tools/autograd/derivatives.yaml, slice.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    slice_backward_wrapper.
    """
    return narrow(x, dim, x.shape[dim] - start)  # where the view begins costs nothing


def select(x: Tensor, dim: int) -> Tensor:
    """`x[:, 0]`: a view without the dimension, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole (`select_backward`).
    Source: tools/autograd/derivatives.yaml, select.int.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("select_backward", whole, grad.dtype, grad.batched),)

    strides = x.strides or contiguous_strides(whole)
    shape = (*whole[:dim], *whole[dim + 1 :])
    left = (*strides[:dim], *strides[dim + 1 :])
    return x.alias(shape, normalised(shape, left), x.tape.record("select", (x,), backward))


def split(x: Tensor, size: int, dim: int = -1) -> list[Tensor]:
    """`x.split(size, dim)`: views, nothing new; the last one is smaller where the length is no multiple.

    Backward: 1 new, the gradients of the parts concatenated; a part that got none is filled with zeros first.
    Source: tools/autograd/derivatives.yaml, split.Tensor; torch/csrc/autograd/FunctionsManual.cpp, split_backward.
    """
    whole = x.shape
    dim %= len(whole)
    shapes = [(*whole[:dim], min(size, whole[dim] - start), *whole[dim + 1 :]) for start in range(0, whole[dim], size)]

    def backward(grads: Any, saved: Saved) -> Grads:
        # parts that got no gradient are filled with zeros first, then everything is concatenated
        full = grads if isinstance(grads, list) else [grads]
        full = full + [None] * (len(shapes) - len(full))
        some = next(grad for grad in full if grad is not None)
        tape, dtype, batched = some.tape, some.dtype, some.batched
        zeros = [
            tape.new("zeros", shape, dtype, batched) for grad, shape in zip(full, shapes, strict=True) if grad is None
        ]
        whole_gradient = tape.new("cat", whole, dtype, batched)
        del zeros
        return (whole_gradient,)

    node = x.tape.record("split", (x,), backward)
    strides = x.strides or contiguous_strides(whole)
    return [x.alias(shape, normalised(shape, strides), node, i) for i, shape in enumerate(shapes)]


def cat(tensors: list[Tensor], dim: int) -> Tensor:
    """`torch.cat`: new, contiguous, of the widest dtype, nothing saved.

    Backward: nothing new; each input gets a view of the gradient.
    Source: tools/autograd/derivatives.yaml, cat; torch/csrc/autograd/FunctionsManual.cpp, cat_tensors_backward.
    """
    dim %= len(tensors[0].shape)
    sizes = [x.shape[dim] for x in tensors]
    joined = tensors[0].tape.joined(tensors, dim)
    if joined is not None:
        return joined

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = grad.strides or contiguous_strides(grad.shape)
        shapes = [(*grad.shape[:dim], size, *grad.shape[dim + 1 :]) for size in sizes]
        return tuple(grad.alias(shape, normalised(shape, strides), None) for shape in shapes)

    first = max(tensors, key=lambda x: x.dtype.itemsize)
    shape = (*first.shape[:dim], sum(sizes), *first.shape[dim + 1 :])
    node = first.tape.record("cat", tensors, backward)
    return first.tape.new("cat", shape, first.dtype, any(x.batched for x in tensors), None, node)


def expand(x: Tensor, shape: Shape) -> Tensor:
    """`x.expand(shape)`: a view with stride 0, nothing new.

    Backward: 1 new, the gradient summed over the expanded dimensions.
    Source: tools/autograd/derivatives.yaml, expand.
    """
    if x.shape == shape:
        return x
    before, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("sum", before, grad.dtype, batched),)

    old = x.strides or contiguous_strides(before)
    strides = tuple(0 if b == 1 and a != 1 else s for a, b, s in zip(shape, before, old, strict=True))
    wide = x.alias(shape, normalised(shape, strides), x.tape.record("expand", (x,), backward))
    wide.batched = batched or shape[0] != before[0]  # one for each sample
    return wide


def pad_last(x: Tensor, amount: int) -> Tensor:
    """`F.pad(x, (0, amount))`: new, contiguous in the logical order, nothing saved.

    Backward: 1 new, a copy of the part that was not padded.
    Source: tools/autograd/derivatives.yaml, constant_pad_nd; aten/src/ATen/native/PadNd.cpp.
    """
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("constant_pad_nd_backward", before, grad.dtype, grad.batched),)

    node = x.tape.record("constant_pad_nd", (x,), backward)
    return x.tape.new("constant_pad_nd", (*before[:-1], before[-1] + amount), x.dtype, x.batched, None, node)


def repeat_interleave(x: Tensor, times: int) -> Tensor:
    """`x.repeat_interleave(times, dim=1)`: always a copy, also of one head.

    Backward: 1 new, the sum over the copies.
    Source: aten/src/ATen/native/Repeat.cpp, repeat_interleave_symint.
    """
    batch, heads, length, width = x.shape
    strides = x.strides or contiguous_strides(x.shape)
    shape5 = (batch, heads, 1, length, width)
    five = view_unsqueezed(x, shape5, (*strides[:2], strides[1], *strides[2:]))
    wide = expand(five, (batch, heads, times, length, width))
    return view(clone(wide), (batch, heads * times, length, width))


def view_unsqueezed(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """`x[:, :, None]`: a view with one more dimension of size 1, nothing new.

    Backward: the gradient without that dimension, nothing new.
    Source: tools/autograd/derivatives.yaml, unsqueeze.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        old = grad.strides or contiguous_strides(grad.shape)
        squeezed = (*grad.shape[:2], *grad.shape[3:])
        return (grad.alias(squeezed, normalised(squeezed, (*old[:2], *old[3:])), None),)

    node = None if x.node is None else x.tape.record("unsqueeze", (x,), backward)
    return x.alias(shape, normalised(shape, strides), node)
