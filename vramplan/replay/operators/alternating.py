"""Operator rules of Gemma 3n: several hidden states side by side, of which parts are changed in place, and deviations.

n is the number of hidden states, B the micro-batch, S the sequence, H the width.
"""

from __future__ import annotations

from typing import Any

from vramplan.replay.operators.indexing import permute
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Shape, Tensor, contiguous_strides, dense_like, normalised


def stack_first(tensors: list[Tensor]) -> Tensor:
    """`torch.stack(tensors)`: new, contiguous, of the widest dtype, nothing saved.

    Backward: nothing new; each input gets a view of the gradient.
    Source: tools/autograd/derivatives.yaml, stack; aten/src/ATen/native/TensorShape.cpp, stack.
    """
    count = len(tensors)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        strides = grad.strides or contiguous_strides(grad.shape)
        shape = grad.shape[1:]
        return tuple(grad.alias(shape, normalised(shape, strides[1:]), None) for _ in range(count))

    first = max(tensors, key=lambda x: x.dtype.itemsize)
    node = first.tape.record("stack", tensors, backward)
    return first.tape.new("stack", (count, *first.shape), first.dtype, first.batched, None, node)


def mean_over(x: Tensor, dim: int) -> Tensor:
    """`x.mean(dim)`: new, nothing saved.

    Backward: 1 new of the full size, the gradient expanded and divided.
    Source: tools/autograd/derivatives.yaml, mean.dim; torch/csrc/autograd/FunctionsManual.cpp, mean_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("div", whole, grad.dtype, grad.batched),)

    shape = (*whole[:dim], *whole[dim + 1 :])
    return x.tape.new("mean", shape, x.dtype, x.batched and len(shape) > 0, None, x.tape.record("mean", (x,), backward))


def sqrt(x: Tensor) -> Tensor:
    """sqrt(x): new.

    Saves `out`: the gradient is the incoming one divided by twice the result.
    Backward: 1 new, beside twice the result.
    Source: tools/autograd/derivatives.yaml, sqrt.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _twice = grad.tape.like("mul", saved[0])
        return (grad.tape.like("div", grad),)

    node = tape.record("sqrt", (x,), backward)
    out = tape.like("sqrt", x, None, node)
    tape.save(node, out)
    return out


def deviation_last(x: Tensor) -> Tensor:
    """`x.std(-1, keepdim=True, unbiased=False)`: new, [..., 1].

    Saves `x`: the gradient is the incoming one times how far each element is from the mean.
    Saves `out`: and divided by the deviation.
    Backward: two new of the full size, of which the product remains, beside what has a number for each row.
    Source: tools/autograd/derivatives.yaml, std.correction; torch/csrc/autograd/FunctionsManual.cpp, std_backward and
    var_backward.
    """
    tape = x.tape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape, source = grad.tape, saved[0]
        _of_variance = tape.like("div", grad)
        _scaled = tape.like("mul", grad)
        mean = tape.new("mean", (*source.shape[:-1], 1), source.dtype, source.batched)
        distance = tape.like("sub", source)
        del mean
        return (tape.like("mul", distance),)

    node = tape.record("std", (x,), backward, (x,))
    out = tape.new("std", (*x.shape[:-1], 1), x.dtype, x.batched, None, node)
    tape.save(node, out)
    return out


def repeat_first(x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1, 1, 1)` of three dimensions: new, contiguous, [times, ...]; nothing saved.

    Backward: 1 new, the gradient summed over the repeats.
    Source: tools/autograd/derivatives.yaml, repeat; torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("sum", whole, grad.dtype, grad.batched),)

    node = x.tape.record("repeat", (x,), backward)
    return x.tape.new("repeat", (times, *whole), x.dtype, x.batched, None, node)


def add_to_permuted(x: Tensor, order: tuple[int, ...], other: Tensor) -> Tensor:
    """`y = x.permute(order); y += other`: the storage of x, and what y is then.

    Backward: what y was looked at as it lies, 1 new of the whole (AsStridedBackward); then the gradient of x, a copy of
    it, and of it another copy for `other` (CopySlices).
    Source: torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply; torch/csrc/autograd/variable.cpp, grad_fn;
    torch/csrc/autograd/FunctionsManual.cpp, as_strided_backward.
    """
    view = permute(x, order)
    changed = _changed(x, other, view.shape, view.strides)
    return x.alias(view.shape, view.strides, _as_it_lies(x, changed))


def add_to_rest(x: Tensor, other: Tensor) -> Tensor:
    """`x[1:] += other`, which is an addition in place and then a copy of what lies there already: the storage of x.

    Backward: of the copy a gradient of the whole, of the part a copy and zeros; of the view that was copied zeros of
    the whole; then of the addition a gradient of the whole, and of the part a copy, which `other` gets.
    Source: torch/csrc/autograd/python_variable_indexing.cpp, THPVariable_setitem; aten/src/ATen/TensorIndexing.h,
    copy_to; torch/csrc/autograd/functions/tensor.cpp, CopySlices::apply and CopyBackwards::apply.
    """
    shape = (x.shape[0] - 1, *x.shape[1:])
    added = x.alias(x.shape, x.strides, _changed(x, other, shape, None))
    part = added.alias(shape, None, _as_it_lies(added, added.node))
    return x.alias(x.shape, x.strides, _copied(added, part))


def _changed(x: Tensor, other: Tensor, part: Shape, strides: Shape | None) -> Any:
    """The node of an addition in place to a view of x, CopySlices with AddBackward."""
    whole, lies = x.shape, x.strides

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        result = tape.new("new_empty_strided", whole, grad.dtype, grad.batched, lies)
        layout = None if strides is None else dense_like(part, strides)
        return (result, tape.new("clone", part, grad.dtype, grad.batched, layout))

    return x.tape.record("CopySlices", (x, other), backward)


def _copied(x: Tensor, part: Tensor) -> Any:
    """The node of a copy of `part` to the place where it lies in x."""
    whole, lies, shape = x.shape, x.strides, part.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        tape = grad.tape
        result = tape.new("new_empty_strided", whole, grad.dtype, grad.batched, lies)
        piece = tape.new("clone", shape, grad.dtype, grad.batched)
        zeros = tape.like("zeros_like", piece)
        del zeros
        return (result, piece)

    return x.tape.record("CopySlices", (x, part), backward)


def _as_it_lies(x: Tensor, node: Any) -> Any:
    """The node of a view after a change in place: the gradient is put into zeros of the whole."""
    whole, lies = x.shape, x.strides
    seen = x.alias(whole, lies, node)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, grad.batched, lies),)

    return x.tape.record("AsStrided", (seen,), backward)
