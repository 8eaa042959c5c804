"""The cross-entropy of heads that do not cast their logits, and what a job asks for in its place."""

from __future__ import annotations

from vramplan.replay.models.modules import FP32_LOGITS, SMOOTHED, SMOOTHED_FP32, Recipe
from vramplan.replay.operators.ends import cross_entropy
from vramplan.replay.operators.views import to
from vramplan.replay.techniques.smoothing import smoothed_cross_entropy
from vramplan.replay.tensors import FP32, Tensor


def entropy(rows: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """A cross-entropy over rows of logits as they are or in fp32, with labels as they are or smoothed."""
    rows = to(rows, FP32) if recipe.loss in (FP32_LOGITS, SMOOTHED_FP32) else rows
    return (
        smoothed_cross_entropy(rows, labels)
        if recipe.loss in (SMOOTHED, SMOOTHED_FP32)
        else cross_entropy(rows, labels)
    )
