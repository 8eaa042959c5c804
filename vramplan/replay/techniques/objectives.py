"""Losses that the training loop makes when the model has returned: outside of autocast, of what the model gave."""

from __future__ import annotations

from typing import Any

from vramplan.replay.inputs import Objective
from vramplan.replay.models.modules import Output
from vramplan.replay.observers import Sharding
from vramplan.replay.operators.elementwise import div_by, mul_scalar, neg
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.operators.views import to
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques.preference import Scored
from vramplan.replay.techniques.smoothing import label_smoother
from vramplan.replay.tensors import FP32, INT64, Tensor


class SmoothsLabels(Objective):
    """Label smoothing of Transformers' Trainer: the model is asked for logits (trainer.py, Trainer.compute_loss)."""

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """A forward pass, and the loss that the Trainer makes of its results."""
        return forward_and_smoothed_loss(self.setup, self.tape, model, arguments)

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)


class ScoresTokens(Objective):
    """TRL's SFTTrainer since 1.16: its head gives log-probabilities, and the loss is made of them.

    The tokens of a batch are counted by the Trainer. Sums for the metrics are no larger than the loss.
    Source: trl 1.16.0, trainer/sft_trainer.py, SFTTrainer.compute_loss with the loss type nll.
    """

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """A forward pass, and the loss that the trainer makes of its scores."""
        scored = model(*arguments).logits
        assert isinstance(scored, Scored)
        self.tape.autocast = None
        self.tape.casts.clear()
        _per_token_loss = neg(scored.log_probabilities)
        total = sum_all(_per_token_loss)
        count = self.tape.new("clamp", (), INT64, False)
        return Output(mul_scalar(div_by(total, count)), None)

    def returned(self, output: Output) -> Output:
        """The loss is no part of it."""
        return output._replace(loss=None)


def forward_and_smoothed_loss(setup: Setup, tape: Tape, model: Any, arguments: list[Tensor]) -> Output:
    """A forward pass, and the smoothed loss of its logits: no part of the model that FSDP wraps or that is compiled."""
    logits = leave_autocast(tape, model(*arguments)).logits
    tape.leave_model()
    shifts = setup.model.task == "lm"
    labels = labels_among(arguments, model)
    if type(logits) is tuple:  # and what the encoder gave, or what images became, which lives as long
        logits = (tape.leave_graph(_left(tape, logits[0])), *logits[1:])
        return Output(label_smoother(logits[0], labels, shifts=shifts), logits)
    assert isinstance(logits, Tensor)
    logits = tape.leave_graph(_left(tape, logits))
    return Output(label_smoother(logits, labels, shifts=shifts), logits)


def labels_among(arguments: list[Tensor], model: Any) -> Tensor:
    """The labels: of LLaVA they come behind the image, and of LLaVA-NeXT behind its height and width too."""
    own = getattr(model, "inputs", None)
    if own is None:
        return next(one for one in arguments[1:] if one.dtype is INT64)
    return arguments[[name for name, *_ in own()].index("labels")]


def _left(tape: Tape, logits: Tensor) -> Tensor:
    """The same where devices share the weights: forward of the model that is wrapped is over."""
    return tape.role(Sharding).after_model(logits)


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
