"""Operator rules of attention with compressed keys and values: unequal parts, copies into slices, turned pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, DType, Shape, Tensor, contiguous_strides, dense_like, normalised

COMPLEX64 = DType("complex64", 8)


def split_sizes(x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """`x.split(sizes, -1)`, parts of these lengths: views, nothing new.

    Backward: 1 new, the gradients of the parts concatenated; a part that got none is filled with zeros first.
    Source: tools/autograd/derivatives.yaml, split_with_sizes; torch/csrc/autograd/FunctionsManual.cpp,
    split_with_sizes_backward.
    """
    whole = x.shape
    shapes = [(*whole[:-1], size) for size in sizes]

    def backward(grads: Any, saved: Saved) -> Grads:
        full = grads if isinstance(grads, list) else [grads]
        full = full + [None] * (len(shapes) - len(full))
        some = next(grad for grad in full if grad is not None)
        tape, dtype, batched = some.tape, some.dtype, some.batched
        zeros = [tape.new("zeros", shape, dtype, batched) for grad, shape in zip(full, shapes, strict=True) if not grad]
        together = tape.new("cat", whole, dtype, batched)
        del zeros
        return (together,)

    node = x.tape.record("split_with_sizes", (x,), backward)
    strides = x.strides or contiguous_strides(whole)
    return [x.alias(shape, normalised(shape, strides), node, i) for i, shape in enumerate(shapes)]


def every_second(x: Tensor) -> Tensor:
    """`x[..., 0::2]` or `x[..., 1::2]`: a view, nothing new.

    Backward: 1 new, a zero-filled tensor of the whole with the gradient in its places (`slice_backward`).
    Source: tools/autograd/derivatives.yaml, slice.Tensor; torch/csrc/autograd/FunctionsManual.cpp,
    slice_backward_wrapper.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("slice_backward", whole, grad.dtype, grad.batched),)

    strides = x.strides or contiguous_strides(whole)
    shape = (*whole[:-1], whole[-1] // 2)
    return x.alias(shape, normalised(shape, (*strides[:-1], 2 * strides[-1])), x.tape.record("slice", (x,), backward))


def sub(a: Tensor, b: Tensor) -> Tensor:
    """a - b of one dtype: new, nothing saved.

    Backward: 1 new, the negated gradient for b; a gets the gradient itself.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    shape, lead = broadcast(a, b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad.tape.like("neg", grad))

    node = a.tape.record("sub", (a, b), backward)
    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    return a.tape.new("sub", shape, a.dtype, a.batched or b.batched, strides, node)


def copied_together(first: Tensor, second: Tensor) -> Tensor:
    """A new tensor of the dtype of `first`, into whose two slices along the last dimension the two are copied.

    Nothing is saved.
    Backward: for each copy, last to first, the gradient of the whole copied, and that of the slice cloned out of it; a
    slice of another dtype is cast beside them.
    Source: torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply and CopyBackwards::apply.
    """
    tape = first.tape
    shape = (*first.shape[:-1], first.shape[-1] + second.shape[-1])
    empty = tape.new("new_empty", shape, first.dtype, first.batched)
    once = empty.alias(shape, None, copy_slices(empty, first, None))
    return empty.alias(shape, None, copy_slices(empty, second, once))


def copy_slices(whole: Tensor, part: Tensor, before: Tensor | None, place: Shape | None = None) -> Any:
    """The node of a part that is copied into its place in a whole, which is `before` where that needs a gradient.

    `place` are the strides of the place, where its elements lie in another order than row by row.
    Backward: a new gradient of the whole, and of the part a copy, beside zeros in its place where the whole has one.
    Source: torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply.
    """
    shape, strides, part_shape, dtype = whole.shape, whole.strides, part.shape, part.dtype
    part_strides = None if place is None else dense_like(part_shape, place)
    continues = before is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        result = tape.new("new_empty_strided", shape, grad.dtype, grad.batched, strides)
        piece = tape.new("clone", part_shape, grad.dtype, grad.batched, part_strides)
        zeros = tape.like("zeros_like", piece) if continues else None
        if piece.dtype is not dtype:
            piece = tape.like("to", piece, dtype)
        del zeros
        return (result if continues else None, piece)

    return whole.tape.record("CopySlices", (before, part), backward)


def as_complex(x: Tensor) -> Tensor:
    """`torch.view_as_complex` of pairs [..., 2] in fp32: a view, nothing new.

    Backward: nothing new, the gradient as pairs.
    Source: tools/autograd/derivatives.yaml, view_as_complex.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (_pairs(grad, None),)

    node = x.tape.record("view_as_complex", (x,), backward)
    return _numbers(x, node)


def as_real(x: Tensor) -> Tensor:
    """`torch.view_as_real`, pairs [..., 2] in fp32: a view, nothing new.

    Backward: the gradient as complex numbers, for which it has to be contiguous: else 1 new.
    Source: tools/autograd/derivatives.yaml, view_as_real.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        if grad.strides is not None:
            grad = grad.tape.new("clone", grad.shape, grad.dtype, grad.batched)
        return (_numbers(grad, None),)

    node = x.tape.record("view_as_real", (x,), backward)
    return _pairs(x, node)


def _numbers(x: Tensor, node: Any) -> Tensor:
    shape = x.shape[:-1]
    strides = None if x.strides is None else normalised(shape, tuple(stride // 2 for stride in x.strides[:-1]))
    return Tensor(x.tape, x.storage, shape, COMPLEX64, x.batched, strides, node)


def _pairs(x: Tensor, node: Any) -> Tensor:
    shape = (*x.shape, 2)
    strides = None if x.strides is None else normalised(shape, (*(2 * stride for stride in x.strides), 1))
    return Tensor(x.tape, x.storage, shape, FP32, x.batched, strides, node)


def rotate_numbers(x: Tensor, turns: Tensor) -> Tensor:
    """x * turns, complex numbers of which the second need no gradient: new.

    Saves `turns`: the gradient of x is the incoming one times their conjugates.
    Backward: 1 new, beside a copy of the conjugates.
    Source: tools/autograd/derivatives.yaml, mul.Tensor; aten/src/ATen/native/MathBitsFallback.h.
    """
    tape, shape, batched = x.tape, turns.shape, turns.batched  # of packed sequences each token has turns of its own

    def backward(grad: Tensor, saved: Saved) -> Grads:
        conjugates = grad.tape.new("clone", shape, COMPLEX64, batched)
        result = grad.tape.like("mul", grad)
        del conjugates
        return (result,)

    return tape.like("mul", x, None, tape.record("mul", (x,), backward, (turns,)))
