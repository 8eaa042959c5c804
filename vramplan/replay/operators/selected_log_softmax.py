"""Operator rule of TRL's log-probabilities of labels over whole logits: one kernel instead of a log_softmax.

Read off trl 1.16.0, kernels/logprob_entropy.py, which Triton runs on CUDA.
"""

from __future__ import annotations

from vramplan.replay.operators.views import Grads
from vramplan.replay.recorder import Saved
from vramplan.replay.tensors import FP32, Tensor


def selected_log_softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """`selective_log_softmax(logits, labels)` of logits [N, S, V]: new, [N, S] in fp32, and the entropies beside it.

    Saves `logits`: the kernel computes the softmax anew.
    Saves `labels`: where the probabilities are.
    Saves `log_z`: in fp32, one number for each label.
    Saves `expected_logit`: the same.
    Backward: 1 new, the gradient of the logits, contiguous and in their dtype.
    Source: trl 1.16.0, kernels/logprob_entropy.py, _LogProbEntropyFunction.
    """
    tape, shape = logits.tape, labels.shape
    found = tape.new("logprobs", shape, FP32, True)
    _entropy = tape.new("entropy", shape, FP32, True)
    log_z = tape.new("log_z", shape, FP32, True)
    expected_logit = tape.new("expected_logit", shape, FP32, True)
    whole, dtype = logits.shape, logits.dtype

    def backward(grad: Tensor, saved: Saved) -> Grads:
        _contiguous = grad if grad.strides is None else grad.tape.new("contiguous", shape, FP32, True)
        return (grad.tape.new("grad_logits", whole, dtype, True),)

    node = tape.record("selective_log_softmax", (logits,), backward, (logits, labels, log_z, expected_logit))
    return found.alias(shape, None, node)
