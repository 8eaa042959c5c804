"""Operator rule of torchtitan's ChunkedLossWrapper: head, loss and backward of a part of the tokens at a time.

Read off torchtitan main (b5bcd76c), torchtitan/components/loss.py (ChunkedLossWrapper, GradAccumulator); not traced.
Names that start with an underscore are locals of that code which outlive their use.
"""

from __future__ import annotations

from math import prod

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, DType, Parameter, Tensor


def chunked_head(hidden: Tensor, weight: Parameter, chunks: int, summed: DType) -> Tensor:
    """The loss of hidden states [B, S, H] and a weight [V, H], of so many parts of the tokens; new, a scalar.

    Of one part at a time there are the logits, their copy in fp32, and the gradients down to its hidden states. New
    until it returns: the gradient of the weight in `summed`, to which that of each part is added.
    Saves `of_hidden`: the gradient of the hidden states, added up in fp32 and cast to their type.
    Saves `of_weight`: the gradient of the weight, which FSDP reduces after the last part.
    Backward: the saved gradients are the results.
    Source: torchtitan main (b5bcd76c), torchtitan/components/loss.py, ChunkedLossWrapper.__call__.
    """
    tape, batched = hidden.tape, hidden.batched
    batch, length, width = hidden.shape
    part = (batch, -(-length // chunks))
    words = weight.shape[0]
    need_w = weight.node is not None

    def backward(grad: Tensor, saved: Saved) -> Grads:
        return (saved[0], saved[1] if need_w else None)

    node = tape.record("chunked_head", (hidden, weight), backward)
    gradient = tape.new("zeros_like", hidden.shape, FP32, batched)
    total: Tensor | None = None
    for _ in range(chunks):
        logits = tape.new("mm", (*part, words), hidden.dtype, batched)
        wide = logits if logits.dtype is FP32 else tape.new("to", logits.shape, FP32, batched)
        probabilities = tape.new("log_softmax", logits.shape, FP32, batched)
        del wide
        picked = tape.new("nll_loss_backward", logits.shape, FP32, batched)
        of_logits = tape.new("log_softmax_backward", logits.shape, FP32, batched)
        del picked, probabilities
        if logits.dtype is not FP32:
            of_logits = tape.new("to", logits.shape, logits.dtype, batched)
        _of_part = tape.new("mm", (*part, width), hidden.dtype, batched)
        if need_w:
            added = tape.new("mm", weight.shape, weight.dtype, False)
            if total is None:
                total = added if added.dtype is summed else tape.new("to", weight.shape, summed, False)
            del added
        del logits, of_logits
    tape.work((4 + 2 * need_w) * prod(hidden.shape) * words)
    of_hidden = gradient if hidden.dtype is FP32 else tape.new("to", hidden.shape, hidden.dtype, batched)
    del gradient
    of_weight = None
    if total is not None:
        of_weight = total if total.dtype is weight.dtype else tape.new("to", weight.shape, weight.dtype, False)
    del total
    loss = tape.new("sum", (), FP32, False, None, node)
    tape.save(node, of_hidden, *(() if of_weight is None else (of_weight,)))
    return loss
