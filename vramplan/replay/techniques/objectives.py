"""Losses that the training loop makes when the model has returned: outside of autocast, of what the model gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.replay.models.modules import LABEL_SMOOTHER, Output, Recipe
from vramplan.replay.operators.views import to
from vramplan.replay.record import State
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.preference_pairs import forward_and_preferences
from vramplan.replay.techniques.smoothing import label_smoother
from vramplan.replay.tensors import FP32, Tensor

if TYPE_CHECKING:
    from vramplan.replay.setup import Setup


def forward_and_loss(
    setup: Setup, tape: Tape, model: Any, recipe: Recipe, arguments: list[Tensor], states: list[State]
) -> Output:
    """A forward pass, and the loss that the Trainer makes of its results (trainer.py, Trainer.compute_loss).

    What it needs on the device beside the inputs is added to the states.
    """
    if setup.loss != LABEL_SMOOTHER:
        return forward_and_preferences(setup, tape, model, recipe, arguments, states)
    output = leave_autocast(tape, model(*arguments))
    tape.offloading = False  # it is the model's forward pass that is wrapped
    logits = output.logits
    if type(logits) is tuple:  # and what the encoder gave, which lives as long
        return Output(label_smoother(logits[0], arguments[1], shifts=False), logits)
    assert isinstance(logits, Tensor)
    return Output(label_smoother(logits, arguments[1], shifts=setup.model.task == "lm"), logits)


def leave_autocast(tape: Tape, output: Output) -> Output:
    """The end of the autocast context around the model's forward pass: its casts go, and its results become fp32.

    Source: accelerate 1.15, Accelerator.prepare_model and ConvertOutputsToFp32 (utils/operations.py).
    """
    if tape.autocast is None:
        return output
    tape.autocast = None
    tape.casts.clear()
    logits = output.logits
    if type(logits) is tuple:
        return Output(None, tuple(to(one, FP32) for one in logits))
    assert isinstance(logits, Tensor)
    return Output(None, to(logits, FP32))
