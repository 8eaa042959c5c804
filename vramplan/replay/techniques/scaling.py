"""Scaling an fp16 loss as torch.amp.GradScaler does: a few scalars around the step, and the gradients in place."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.operators.basic import mul_scalar
from vramplan.replay.precision import Precision
from vramplan.replay.record import State
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, FP64, Tensor

KNOW_SCALES = ("adamw", "adam", "sgd", "sgd-momentum")  # whose fused kernels of torch.optim unscale by themselves


def scaler_states() -> list[State]:
    """The scale and the count of steps since it grew.

    Source: torch/amp/grad_scaler.py, GradScaler._lazy_init_scale_growth_tracker.
    """
    return [State("optimizer", 2 * rounded(FP32.itemsize), 0)]


def scale_loss(loss: Tensor) -> Tensor:
    """The loss times the scale: torch/amp/grad_scaler.py, GradScaler.scale."""
    return mul_scalar(loss)


def unscale(tape: Tape) -> Tensor:
    """Divide the gradients by the scale in place, and find whether one of them is not finite; that is returned.

    The reciprocal is taken in fp64.
    Source: torch/amp/grad_scaler.py, GradScaler.unscale_ and _unscale_grads_.
    """
    tape.category = "temporaries"
    double = tape.new("_to_copy", (), FP64, False)
    reciprocal = tape.new("reciprocal", (), FP64, False)
    del double
    inverse = tape.new("_to_copy", (), FP32, False)
    del reciprocal
    return _check(tape, inverse)


def unscale_before_clipping(
    tape: Tape, held: list[Tensor], optimizer: str, implementation: str, max_gradient_norm: float | None
) -> None:
    """Gradients are unscaled before they are clipped; and before a step whose kernels do not do it.

    `held` is what lives until the scale is updated, after the step.
    Source: torch/amp/grad_scaler.py, GradScaler.step.
    """
    if max_gradient_norm is not None or not _knows_scales(optimizer, implementation):
        held.append(unscale(tape))


def unscale_in_step(tape: Tape, held: list[Tensor], optimizer: str, implementation: str) -> None:
    """What a fused kernel is given, that skips the step or unscales by itself: if one is not finite, the scale.

    Source: torch/amp/grad_scaler.py, GradScaler.step and _check_inf_per_device.
    """
    if not _knows_scales(optimizer, implementation):
        return
    tape.category = "temporaries"
    if held:
        held.append(tape.new("add", (), FP32, False))
        return
    held.append(_check(tape, tape.new("full", (), FP32, False)))
    held.append(tape.new("add", (), FP32, False))
    held.append(tape.new("mul", (), FP32, False))


def _check(tape: Tape, _inverse: Tensor) -> Tensor:
    """One kernel over all gradients, in place; both scalars are copied to the device, where they are already."""
    _found = tape.new("full", (), FP32, False)
    found = tape.new("_to_copy", (), FP32, False)
    _copy = tape.new("_to_copy", (), FP32, False)
    return found


def _knows_scales(optimizer: str, implementation: str) -> bool:
    return implementation == "fused" and optimizer in KNOW_SCALES


class ScalesLoss(Technique):
    """torch.amp.GradScaler around one step."""

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        super().__init__(setup, tape, precision)
        self.held: list[Tensor] = []  # until the scale is updated, after the step

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward begins with."""
        return scale_loss(loss)

    def before_clipping(self) -> None:
        """`scaler.unscale_`, which clipping needs."""
        setup = self.setup
        optimizer, implementation = setup.optimizer, setup.optimizer_implementation
        unscale_before_clipping(self.tape, self.held, optimizer, implementation, setup.max_gradient_norm)

    def before_step(self) -> None:
        """`scaler.step`."""
        unscale_in_step(self.tape, self.held, self.setup.optimizer, self.setup.optimizer_implementation)

    def after_step(self) -> None:
        """`scaler.update`."""
        self.held.clear()

    def states(self, buffers: Sequence[int]) -> list[State]:
        """The scale."""
        return scaler_states()
