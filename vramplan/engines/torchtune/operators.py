"""Operator rules that torchtune's code needs: rotary positions that turn neighbours."""

from __future__ import annotations

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import Tensor, dense_like


def difference(a: Tensor, b: Tensor) -> Tensor:
    """a - b, where both need gradients: new, nothing saved.

    Backward: 1 new, the gradient of b; that of a is handed through.
    Source: tools/autograd/derivatives.yaml, sub.Tensor.
    """
    shape, lead = broadcast(a, b)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (grad, grad.tape.like("neg", grad))

    strides = None if lead.strides is None else dense_like(lead.shape, lead.strides)
    node = a.tape.record("sub", (a, b), backward)
    return a.tape.new("sub", shape, a.dtype, a.batched or b.batched, strides, node)
