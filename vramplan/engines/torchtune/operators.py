"""Operator rules that torchtune's code needs: rotary positions that turn neighbours, and blocks that are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vramplan.replay.operators.elementwise import broadcast
from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved, Tape
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


def materialised(x: Tensor) -> Tensor:
    """What a kernel of backward reads from memory: a compiled block keeps it, and does not compute it again.

    Source: torch/_functorch/partitioners.py, ban_recompute_materialized_backward.
    """
    tape = x.tape
    if not tape.selective:
        return x
    kept = tape.recall()
    if kept is not None:
        return kept[0].alias(x.shape, x.strides, x.node)
    tape.keep(False, x)
    return x


@contextmanager
def unasked(tape: Tape) -> Iterator[None]:
    """Products that no kernel of backward reads: a compiled block keeps what was made of them instead."""
    frame = tape.frame or tape.recomputing
    if frame is None:
        yield
        return
    keeps, frame.keeps = frame.keeps, None
    try:
        yield
    finally:
        frame.keeps = keeps
