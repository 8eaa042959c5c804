"""TRL's head for preference training, and direct preference optimization (arXiv:2305.18290, equation 7) over it.

Names that start with an underscore are locals of the original which outlive their use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.replay.models.modules import Output
from vramplan.replay.operators.elementwise import add, add_scalar, div_by, mean_last, mul_scalar, neg
from vramplan.replay.operators.experts import sigmoid
from vramplan.replay.operators.log_probabilities import chunked_log_probabilities, masked_rows, masked_scatter
from vramplan.replay.operators.loss_parts import log_sigmoid, shifted, sum_all, sum_last
from vramplan.replay.operators.views import narrow, split
from vramplan.replay.tensors import BOOL, FP32, INT64, Parameter, Tensor
from vramplan.tuples import NamedTuple


class Scored(NamedTuple):
    """FusedCausalLMOutput of trl 1.16.0."""

    log_probabilities: Tensor
    others: tuple[Tensor, ...]  # what was asked for of entropy, mean of the logits, and being the likeliest
    mask: Tensor
    loss: Tensor
    positions: Tensor | None  # their number, which the graph of the loss keeps, if there is one on the device


def fused_lm_head(
    hidden: Tensor,
    weight: Parameter,
    bias: Parameter | None,
    labels: Tensor,
    *,
    others: tuple[str, ...],
) -> Output:
    """add_fused_lm_head of trl 1.16.0 (trainer/utils.py): scores of the labels instead of logits."""
    tape = hidden.tape
    for tell in tape.told.asked_by_model:
        tell(weight)
    batch, length = labels.shape
    hidden = narrow(hidden, 1, length - 1)
    labels = shifted(labels, (batch, length - 1))
    mask = tape.new("ne", (batch, length - 1), BOOL, True)
    results = chunked_log_probabilities(
        masked_rows(hidden, mask),
        weight,
        bias,
        masked_rows(labels, mask),
        others=others,
    )
    log_probs = masked_scatter(results.log_probabilities, mask)
    beside = tuple(masked_scatter(one, mask) for one in results.others)
    del results
    total = neg(sum_all(log_probs.alias(log_probs.shape, None, None)))  # its graph goes with it
    count = tape.new("sum", (), INT64, False)
    count = tape.new("clamp", (), INT64, False)
    loss = div_by(total, count)
    kept = None if tape.told.packing or tape.no_grad else count
    return Output(None, Scored(log_probs, beside, mask, loss, kept))


def preference_loss(
    pairs: int, policy: Callable[[Tensor], Any], reference: Callable[[Tensor], Any] | None, ids: Tensor
) -> Tensor:
    """DPOTrainer._compute_loss of trl 1.16.0 (trainer/dpo_trainer.py) with its default sigmoid, up to the metrics.

    `policy` and `reference` give what a forward pass over the labels gives; without a reference its scores are inputs.
    """
    tape = ids.tape
    unfinished = tape.new("eq", ids.shape, BOOL, True)
    labels = tape.new("masked_fill", ids.shape, INT64, True)
    del unfinished
    _outputs = policy(labels)
    _logps = sum_last(_outputs.log_probabilities)
    chosen, rejected = split(_logps, pairs, 0)
    if reference is not None:
        _reference_outputs = reference(labels)
        _reference_logps = sum_last(_reference_outputs.log_probabilities)
    _chosen_logratios, _rejected_logratios = add_scalar(chosen), add_scalar(rejected)  # less those of the reference
    _delta_score = add(_chosen_logratios, neg(_rejected_logratios))
    _per_sequence_loss = neg(log_sigmoid(mul_scalar(_delta_score)))
    return add_scalar(mul_scalar(mean_last(_per_sequence_loss)))


def completion_loss(policy: Callable[[Tensor], Any], reference: Callable[[Tensor], Any] | None, ids: Tensor) -> Tensor:
    """KTOTrainer._compute_loss of trl 1.16.0 (trainer/kto_trainer.py; arXiv:2402.01306), up to the metrics.

    Each model also scores mismatched completions, without gradients and before its own pass: as long a batch, which
    needs no more than the pass that follows, and leaves a number for each sample. Desirable and undesirable completions
    are told apart by index, and count here as one group.
    """
    tape = ids.tape
    _kl_logps = tape.new("sum", (ids.shape[0],), FP32, True)
    unfinished = tape.new("eq", ids.shape, BOOL, True)
    labels = tape.new("masked_fill", ids.shape, INT64, True)
    del unfinished
    _outputs = policy(labels)
    _completion_logps = sum_last(_outputs.log_probabilities)
    if reference is not None:
        _reference_kl_logps = tape.new("sum", (ids.shape[0],), FP32, True)
        _reference_outputs = reference(labels)
        _reference_logps = sum_last(_reference_outputs.log_probabilities)
    _logratios = add_scalar(add_scalar(_completion_logps))  # of those of the group, less those of the reference
    _losses = add_scalar(neg(sigmoid(mul_scalar(add_scalar(_logratios)))))
    return mean_last(mul_scalar(_losses))
