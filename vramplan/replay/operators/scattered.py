"""Operator rules of rows that are taken out of others, and added back where they came from."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Tensor


def index_add_in_place(x: Tensor, rows: Tensor, source: Tensor) -> Tensor:
    """`x.index_add_(0, rows, source)`, rows added to those of x by their numbers: the storage of x.

    Saves `rows`: the gradient of the source is taken from them.
    Saves `source`: for its shape.
    Backward: for the source 1 new of its size; for x nothing new, the gradient itself.
    Source: tools/autograd/derivatives.yaml, index_add.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad.tape.new("index_select", source_shape, grad.dtype, is_batched))

    source_shape, is_batched = source.shape, source.batched
    return x.alias(x.shape, x.strides, x.tape.record("index_add", (x, source), backward, (rows, source)))


def index_copy(x: Tensor, rows: Tensor, source: Tensor) -> Tensor:
    """`x.index_copy(0, rows, source)` of x that needs no gradient: new, a copy of it with other rows in their places.

    Saves `rows`: the gradient of the source is taken from them.
    Saves `source`: for its shape.
    Backward: 1 new of the size of the source.
    Source: tools/autograd/derivatives.yaml, index_copy.
    """

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (None, grad.tape.new("index_select", source_shape, grad.dtype, False))

    source_shape = source.shape
    node = x.tape.record("index_copy", (x, source), backward, (rows, source))
    return x.tape.new("index_copy", x.shape, x.dtype, False, None, node)


def index_places(x: Tensor, places: Tensor) -> Tensor:
    """`x[rows, columns, None]`, numbers by two lists that are views of one tensor: new, a column.

    Saves `places`: the gradient is added where the numbers were taken.
    Backward: 1 new of the full size, zeros with the numbers added in place.
    Source: tools/autograd/derivatives.yaml, index.Tensor; torch/csrc/autograd/FunctionsManual.cpp, index_backward.
    """
    whole, is_batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, is_batched),)

    node = x.tape.record("index", (x,), backward, (places,))
    return x.tape.new("index", (places.shape[0], 1), x.dtype, places.batched, None, node)
