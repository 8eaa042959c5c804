"""Divergences between the predictions of a model and of its teacher, as torchtune's recipes of distillation have them.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vramplan.replay.operators.contrastive import exp
from vramplan.replay.operators.elementwise import (
    add,
    add_in_place,
    add_scalar,
    div_by,
    masked_fill,
    mul,
    mul_scalar,
    neg,
)
from vramplan.replay.operators.log_probabilities import masked_rows
from vramplan.replay.operators.loss_parts import sum_all, sum_last
from vramplan.replay.operators.mixtures import difference_of, logsumexp_of_two
from vramplan.replay.operators.normalised import log_softmax, softmax
from vramplan.replay.operators.views import narrow, split, view
from vramplan.replay.tensors import BOOL, FP32, INT32, INT64, Tensor

FORWARD_KL, REVERSE_KL, SYMMETRIC_KL = "forward-kl", "reverse-kl", "symmetric-kl"


def chunked_divergence(
    word: str, logits: Sequence[Tensor], teacher: Sequence[Tensor], labels: Tensor, size: int
) -> Tensor:
    """ForwardKLWithChunkedOutputLoss and its kin: one chunk after the other, all of which are in the graph.

    Source: torchtune 0.6.1, modules/loss/kd_losses.py.
    """
    tape = labels.tape
    theirs = [_rows(one) for one in teacher]
    ours = [_rows(one) for one in logits]
    mask = _mask(labels)
    targets = [view(one, (one.shape[0] * one.shape[1],)) for one in split(labels, size, 1)]
    total: Tensor | None = None
    for mine, other, target in zip(ours, theirs, targets, strict=True):
        found = _SUMS[word](mine, other, target)
        total = add_scalar(found) if total is None else add_in_place(total, found)
        del found
    assert total is not None
    _sum_masks = tape.new("sum", (), INT64, False)
    count = tape.new("sum", (), INT64, False)
    del mask
    return div_by(total, count)


def whole_divergence(word: str, logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """ForwardKLLoss and its kin, over all logits at once; a symmetric one divides each of its parts.

    Source: torchtune 0.6.1, modules/loss/kd_losses.py.
    """
    ours, theirs = _rows(logits), _rows(teacher)
    targets = view(labels, (labels.shape[0] * labels.shape[1],))
    if word != SYMMETRIC_KL:
        return _averaged(_SUMS[word](ours, theirs, targets))
    forward = mul_scalar(_averaged(_forward(ours, theirs, targets)))
    return add(forward, mul_scalar(_averaged(_reverse(ours, theirs, targets))))


def _averaged(total: Tensor) -> Tensor:
    """Over the labels that count."""
    return div_by(total, total.tape.new("sum", (), INT64, False))


def jensen_shannon(word: str, logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """generalized_jsd_loss: between the two, or with `beta` 0 or 1 the divergence of one from the other.

    The Trainer counts the labels of a batch.
    Source: trl 1.16.0, experimental/gkd/gkd_trainer.py, GKDTrainer.generalized_jsd_loss.
    """
    tape, (batch, length, _) = logits.tape, logits.shape
    _student_logits = mul_scalar(narrow(logits, 1, length - 1))  # over the temperature
    _teacher_logits = mul_scalar(narrow(teacher, 1, length - 1))
    _student = log_softmax(_student_logits)
    _teacher = log_softmax(_teacher_logits)
    if word == FORWARD_KL:
        _jsd = _relative(_student, _teacher)
    elif word == REVERSE_KL:
        _jsd = _relative(_teacher, _student)
    else:
        _beta = tape.new("tensor", (), _student.dtype, False)
        _mixture = logsumexp_of_two(_weighed(_student), _weighed(_teacher))
        _of_teacher = _relative(_mixture, _teacher)
        _of_student = _relative(_mixture, _student)
        _jsd = _sum_of_parts(_of_teacher, _of_student, _beta)
    _mask = tape.new("ne", (batch, length - 1), BOOL, True)
    _jsd = masked_rows(_jsd, _mask)
    _jsd_sum = sum_all(_jsd)
    return div_by(_jsd_sum, tape.constant((), INT64, False))


def _weighed(x: Tensor) -> Tensor:
    """x plus the logarithm of a share."""
    share = x.tape.new("log", (), x.dtype, False)
    found = add_scalar(x)
    del share
    return found


def _sum_of_parts(of_teacher: Tensor, of_student: Tensor, beta: Tensor) -> Tensor:
    first = mul(of_teacher, beta)
    rest = beta.tape.new("rsub", (), beta.dtype, False)
    second = mul(of_student, rest)
    del rest
    return add(first, second)


def _relative(x: Tensor, target: Tensor) -> Tensor:
    """F.kl_div(x, target, reduction="none", log_target=True) (aten/src/ATen/native/Loss.cpp)."""
    difference = difference_of(target, x)  # the second factor is computed first
    return mul(exp(target), difference)


def _rows(logits: Tensor) -> Tensor:
    *many, vocabulary = logits.shape
    rows = 1
    for one in many:
        rows *= one
    return view(logits, (rows, vocabulary))


def _mask(labels: Tensor) -> Tensor:
    """Which labels count, as whole numbers of 32 bits."""
    unlike = labels.tape.new("ne", labels.shape, BOOL, True)
    found = labels.tape.new("to", labels.shape, INT32, True)
    del unlike
    return found


def _infinite(logits: Tensor) -> Tensor:
    """isinf: which magnitudes are infinite."""
    tape = logits.tape
    magnitudes = tape.like("abs", logits)
    found = tape.like("eq", logits, BOOL)
    del magnitudes
    return found


def _counted(x: Tensor, labels: Tensor) -> Tensor:
    """Minus the sum of what is of labels that count."""
    return neg(sum_all(mul(x, _mask(labels))))


def _forward(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """ForwardKLLoss."""
    teacher_prob = softmax(teacher, FP32)
    inf_mask = _infinite(logits)
    student_logprob = log_softmax(logits, FP32)
    _prod_probs = masked_fill(mul(teacher_prob, student_logprob), inf_mask)
    return _counted(sum_last(_prod_probs), labels)


def _reverse(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """ReverseKLLoss."""
    tape = logits.tape
    student_prob = softmax(logits, FP32)
    student_logprob = log_softmax(logits, FP32)
    teacher_logprob = log_softmax(teacher, FP32)
    of_student, of_teacher = _infinite(logits), _infinite(teacher)
    inf_mask = tape.like("or", of_student)
    del of_student, of_teacher
    _prod_probs = masked_fill(mul(student_prob, teacher_logprob), inf_mask)
    _prod_probs = _less_in_place(_prod_probs, masked_fill(mul(student_prob, student_logprob), inf_mask))
    return _counted(sum_last(_prod_probs), labels)


def _less_in_place(a: Tensor, b: Tensor) -> Tensor:
    """a -= b: the gradient of b is new."""
    node = b.tape.record("sub", (b,), lambda grad, saved: (grad.tape.like("neg", grad),))
    return add_in_place(a, b.alias(b.shape, b.strides, node))


def _symmetric(logits: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    """SymmetricKLLoss."""
    forward = mul_scalar(_forward(logits, teacher, labels))
    return add(forward, mul_scalar(_reverse(logits, teacher, labels)))


_SUMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    FORWARD_KL: _forward,
    REVERSE_KL: _reverse,
    SYMMETRIC_KL: _symmetric,
}
