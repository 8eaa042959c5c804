"""Operator rule of what is the same for all samples of a micro-batch, made once and repeated."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Tensor


def repeat_samples(x: Tensor, batch: int) -> Tensor:
    """`x.repeat(batch, 1, ...)` of [1, ...]: new, also for one sample; nothing saved.

    Backward: 1 new, the gradients of all samples summed; none for one sample.
    Source: aten/src/ATen/native/TensorShape.cpp, repeat; torch/csrc/autograd/FunctionsManual.cpp, repeat_backward.
    """
    before = x.shape

    def backward(grad: Tensor, saved: Saved) -> Grads:
        if batch == 1:
            return (grad,)
        return (grad.tape.new("sum", before, grad.dtype, False),)

    node = x.tape.record("repeat", (x,), backward)
    return x.tape.new("repeat", (batch, *before[1:]), x.dtype, True, None, node)
