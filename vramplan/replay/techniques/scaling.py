"""Scaling an fp16 loss as torch.amp.GradScaler does: a few scalars around the step, and the gradients in place."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.precision import Precision
from vramplan.replay.record import StandingState
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, FP64, Tensor
from vramplan.values.parallel import is_fsdp

KNOW_SCALES = ("adamw", "adam", "sgd", "sgd-momentum", "adagrad")
"""Whose fused kernels of torch.optim unscale by themselves."""


def scaler_states() -> list[StandingState]:
    """The scale and the count of steps since it grew.

    Source: torch/amp/grad_scaler.py, GradScaler._lazy_init_scale_growth_tracker.
    """
    return [StandingState("optimizer", 2 * rounded(FP32.itemsize), 0)]


def scale_loss(loss: Tensor) -> Tensor:
    """The loss times the scale: torch/amp/grad_scaler.py, GradScaler.scale."""
    return mul_scalar(loss)


def unscale(tape: Tape, *, sharded: bool = False) -> Tensor:
    """Divide the gradients by the scale in place, and find whether one of them is not finite; that is returned.

    The reciprocal is taken in fp64. `sharded`: the gradients are parts of DTensors.
    Source: torch/amp/grad_scaler.py, GradScaler.unscale_ and _unscale_grads_.
    """
    tape.category = "temporaries"
    double = tape.new("_to_copy", (), FP64, False)
    reciprocal = tape.new("reciprocal", (), FP64, False)
    del double
    inverse = tape.new("_to_copy", (), FP32, False)
    del reciprocal
    return _check(tape, inverse, sharded)


def unscale_before_clipping(
    tape: Tape,
    held: list[Tensor],
    optimizer: str,
    implementation: str,
    max_gradient_norm: float | None,
    *,
    sharded: bool = False,
) -> None:
    """Gradients are unscaled before they are clipped; and before a step whose kernels do not do it.

    `held` is what lives until the scale is updated, after the step.
    Source: torch/amp/grad_scaler.py, GradScaler.step.
    """
    if max_gradient_norm is not None or not _knows_scales(optimizer, implementation):
        held.append(unscale(tape, sharded=sharded))


def unscale_in_step(
    tape: Tape, held: list[Tensor], optimizer: str, implementation: str, *, sharded: bool = False
) -> None:
    """What a fused kernel is given, that skips the step or unscales by itself: if one is not finite, the scale.

    Source: torch/amp/grad_scaler.py, GradScaler.step and _check_inf_per_device.
    """
    if not _knows_scales(optimizer, implementation):
        return
    tape.category = "temporaries"
    if held:
        held.append(tape.new("add", (), FP32, False))
        return
    held.append(_check(tape, tape.new("full", (), FP32, False), sharded))
    held.append(tape.new("add", (), FP32, False))
    held.append(tape.new("mul", (), FP32, False))


def _check(tape: Tape, _inverse: Tensor, sharded: bool) -> Tensor:
    """One kernel over all gradients, in place; both scalars are copied to the device, where they are already.

    What was found in the parts of DTensors is the largest over the devices.
    Source: torch/distributed/tensor/_dispatch.py, found_inf_reduce_handler.
    """
    _found = tape.new("full", (), FP32, False)
    found = tape.new("_to_copy", (), FP32, False)
    _copy = tape.new("_to_copy", (), FP32, False)
    if sharded:
        _largest = tape.new("all_reduce", (), FP32, False)
    return found


def _knows_scales(optimizer: str, implementation: str) -> bool:
    return implementation == "fused" and optimizer in KNOW_SCALES


class ScalesLoss(Technique):
    """torch.amp.GradScaler around one step."""

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        super().__init__(setup, tape, precision)
        self.held: list[Tensor] = []  # until the scale is updated, after the step
        sharding = setup.sharding  # FSDP2's parts are DTensors, those of FSDP1 and of ZeRO are tensors
        self.sharded = sharding is not None and is_fsdp(sharding.kind) and sharding.version == 2

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward begins with."""
        return scale_loss(loss)

    def before_clipping(self) -> None:
        """`scaler.unscale_`, which clipping needs."""
        setup = self.setup
        optimizer, implementation = setup.optimizer, setup.optimizer_implementation
        unscale_before_clipping(
            self.tape, self.held, optimizer, implementation, setup.max_gradient_norm, sharded=self.sharded
        )

    def before_step(self) -> None:
        """`scaler.step`."""
        how = self.setup.optimizer, self.setup.optimizer_implementation
        unscale_in_step(self.tape, self.held, *how, sharded=self.sharded)

    def after_step(self) -> None:
        """`scaler.update`."""
        self.held.clear()

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The scale."""
        return scaler_states()
