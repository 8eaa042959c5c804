"""Operator rule of Unsloth's cross-entropy, which writes the gradient of the logits where the logits are."""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, INT64, Tensor

WIDEST = 65536  # tokens of the vocabulary that one program of the kernel has, MAX_FUSED_SIZE


def in_place_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Unsloth's Fast_CrossEntropyLoss for logits [N, V] in their own element type; new, the scalar loss.

    New until it returns: the losses of the rows in fp32, and one logarithm for each part of a row of a vocabulary
    above 65,536 tokens.
    Saves `logits`: the gradient is computed from them.
    Saves `target`: the places where one is subtracted.
    Saves `logarithm`: that of the sum of each row's exponentials, in fp32.
    Backward: nothing new; the saved logits become their gradient.
    Source: unslothai/unsloth, unsloth/kernels/cross_entropy_loss.py, Fast_CrossEntropyLoss and fast_cross_entropy_loss
    (August 2024); unsloth-zoo has the same where whole logits are asked for.
    """
    tape = logits.tape
    rows, vocabulary = logits.shape
    parts = -(-vocabulary // WIDEST)

    def backward(grad: Tensor, saved: Saved) -> Grads:
        del grad
        return (saved[0],)

    node = tape.record("cross_entropy", (logits,), backward, (logits, target))
    losses = tape.new("empty", (rows,), FP32, logits.batched)
    logarithm = tape.new("empty", (rows,) if parts == 1 else (rows, parts), FP32, logits.batched)
    if parts > 1:
        logarithm = tape.new("logsumexp", (rows,), FP32, logits.batched)
    tape.save(node, logarithm)
    count = tape.new("count_nonzero", (), INT64, False)
    loss = tape.new("div", (), FP32, False, None, node)
    del losses, count
    return loss
