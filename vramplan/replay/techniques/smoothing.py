"""Label smoothing: the Trainer's (transformers 5.23, trainer_pt_utils.py), over logits that the model has returned, and
PyTorch's, inside `cross_entropy`.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from vramplan.replay.operators.elementwise import add, div_by, mul_scalar, neg
from vramplan.replay.operators.ends import nll_loss
from vramplan.replay.operators.loss_parts import gather_last, masked_fill_in_place, shifted, sum_all, sum_last
from vramplan.replay.operators.normalised import log_softmax
from vramplan.replay.operators.views import contiguous, narrow
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import BOOL, FP32, INT64, Tensor


def label_smoother(logits: Tensor, labels: Tensor, *, shifts: bool) -> Tensor:
    """LabelSmoother.__call__ of transformers 5.23 (trainer_pt_utils.py), normalised over the micro-batch.

    `shifts`: of a causal language model, whose tokens predict the next ones.
    """
    tape = logits.tape
    if shifts:
        batch, length = labels.shape
        logits = contiguous(narrow(logits, 1, length - 1))
        labels = contiguous(shifted(labels, (batch, length - 1)))
    log_probs = neg(log_softmax(logits))
    one = (*labels.shape, 1)
    padding_mask = tape.new("eq", one, BOOL, True)
    labels = tape.new("clamp", one, INT64, True)
    nll_loss = gather_last(log_probs, labels)
    smoothed_loss = sum_last(log_probs, FP32, keepdim=True)
    nll_loss = masked_fill_in_place(nll_loss, padding_mask)
    smoothed_loss = masked_fill_in_place(smoothed_loss, padding_mask)
    denominator = _active(tape, padding_mask)
    nll_loss = div_by(sum_all(nll_loss), denominator)
    smoothed_loss = div_by(sum_all(smoothed_loss), tape.new("mul", (), INT64, False))
    return add(mul_scalar(nll_loss), mul_scalar(smoothed_loss))


def _active(tape: Tape, padding_mask: Tensor) -> Tensor:
    """`padding_mask.numel() - padding_mask.long().sum()` (trainer_pt_utils.py)."""
    wide = tape.new("to", padding_mask.shape, INT64, True)
    padded = tape.new("sum", (), INT64, False)
    del wide
    active = tape.new("rsub", (), INT64, False)
    del padded
    return active


def smoothed_sum(logits: Tensor, target: Tensor) -> Tensor:
    """The same with `reduction="sum"`, which counts no labels."""
    tape = logits.tape
    probabilities = log_softmax(logits)
    nll = nll_loss(probabilities, target)
    smooth = neg(sum_last(probabilities))
    ignored = tape.new("eq", logits.shape[:-1], BOOL, True)
    smooth = masked_fill_in_place(smooth, ignored)
    whole = sum_all(smooth)
    return add(mul_scalar(nll), mul_scalar(whole))


def smoothed_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """`F.cross_entropy(logits, target, label_smoothing=...)` of torch/nn/functional.py.

    It is cross_entropy_loss_label_smoothing of aten/src/ATen/native/LossNLL.cpp.
    """
    tape = logits.tape
    rows = logits.shape[:-1]
    probabilities = log_softmax(logits)
    nll = nll_loss(probabilities, target)
    smooth = neg(sum_last(probabilities))
    ignored = tape.new("eq", rows, BOOL, True)
    smooth = masked_fill_in_place(smooth, ignored)
    counted = tape.new("bitwise_not", rows, BOOL, True)
    mean = div_by(sum_all(smooth), tape.new("sum", (), INT64, False))
    del counted
    return add(mul_scalar(nll), mul_scalar(mean))
