"""Operator rules of relative positions that all samples share, and of rows that are taken by their numbers: DeBERTa."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Tensor


def repeat_samples(x: Tensor, times: int) -> Tensor:
    """`x.repeat(times, 1, 1)` of what is the same for all samples, [a, n, d]: new, [times a, n, d]; nothing saved.

    Backward: 1 new, the gradient summed over the repeats; of a single one the gradient itself.
    Source: tools/autograd/derivatives.yaml, repeat; torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
    """
    whole = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad if times == 1 else grad.tape.new("sum", whole, grad.dtype, False),)

    node = x.tape.record("repeat", (x,), backward)
    return x.tape.new("repeat", (times * whole[0], *whole[1:]), x.dtype, True, None, node)


def gather_first(x: Tensor, rows: Tensor) -> Tensor:
    """`x.gather(0, rows)` of rows [n, 1] that are expanded to the columns of x: new.

    Saves `x`: the shape of its gradient.
    Saves `rows`: the gradient is added where the values were taken.
    Backward: 1 new of the full size, zeros with the gradient added in place.
    Source: tools/autograd/derivatives.yaml, gather; torch/csrc/autograd/FunctionsManual.cpp, gather_backward.
    """
    whole, batched = x.shape, x.batched

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad.tape.new("new_zeros", whole, grad.dtype, batched),)

    node = x.tape.record("gather", (x,), backward, (x, rows))
    return x.tape.new("gather", (rows.shape[0], whole[1]), x.dtype, batched, None, node)
