"""The head of a causal language model with the loss that a job asks for, or the head of a classifier."""

from __future__ import annotations

from vramplan.replay.models.modules import (
    CAUSAL_LM_FP32,
    SCORED,
    Output,
    Recipe,
    as_returned,
    causal_lm_loss,
    project,
)
from vramplan.replay.operators.views import to
from vramplan.replay.tensors import DType, Parameter, Tensor


def causal_lm_output(
    hidden: Tensor,
    weight: Parameter,
    labels: Tensor,
    recipe: Recipe,
    bias: Parameter | None = None,
    *,
    cast_to: DType | None = None,
) -> Output:
    """The head of a causal language model, and the loss that the job asks for; of a classifier, its own.

    `cast_to`: the dtype of what the head is given, which nobody else holds. TRL's head takes the hidden states as the
    model below has left them (trl 1.16.0, trainer/utils.py, add_fused_lm_head).
    """
    cast_to = cast_to if cast_to is not None and recipe.loss not in SCORED else hidden.dtype
    if recipe.shape.task == "cls":
        from vramplan.replay.models.classified import classify  # only who classifies pays for it

        return classify(to(hidden, cast_to), labels, recipe)
    if recipe.loss != CAUSAL_LM_FP32:
        from vramplan.replay.techniques.losses import head_and_loss  # only who asks for it pays for it

        return head_and_loss(to(hidden, cast_to), weight, bias, labels, recipe)
    logits = as_returned(project(to(hidden, cast_to), weight, bias, recipe), recipe)
    loss = causal_lm_loss(logits, labels, recipe)
    return Output(loss, logits)
