"""Scaling an fp16 loss as torch.amp.GradScaler does: a few scalars around the step, and the gradients in place."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
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


class ScalesLoss(Technique):
    """torch.amp.GradScaler around one step."""

    def __init__(self, setup: Setup, tape: Tape, precision: Precision) -> None:
        super().__init__(setup, tape, precision)
        self.held: list[Tensor] = []  # until the scale is updated, after the step
        self.is_unscaled = False  # before the step
        sharding = setup.sharding  # FSDP2's parts are DTensors, those of FSDP1 and of ZeRO are tensors
        is_shared = sharding is not None and is_fsdp(sharding.kind)
        self.sharded = is_shared and sharding is not None and sharding.version == 2
        self.hosted = is_shared and bool(setup.offload)  # gradients are, and so is what is found in them

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward begins with."""
        return scale_loss(loss)

    def before_clipping(self) -> None:
        """`scaler.unscale_`, which clipping needs, as does a step whose kernels do not unscale.

        The reciprocal is taken in fp64.
        Source: torch/amp/grad_scaler.py, GradScaler.step, unscale_ and _unscale_grads_.
        """
        if self.setup.max_gradient_norm is None and self._knows_scales():
            return
        tape = self.tape
        tape.category = "temporaries"
        double = tape.new("_to_copy", (), FP64, False)
        reciprocal = tape.new("reciprocal", (), FP64, False)
        del double
        inverse = tape.new("_to_copy", (), FP32, False)
        del reciprocal
        self._check(inverse)
        self.is_unscaled = True

    def before_step(self) -> None:
        """`scaler.step`: what a fused kernel is given, that skips the step or unscales by itself.

        That is whether a gradient is not finite, and the scale, if it is to unscale.
        Source: torch/amp/grad_scaler.py, GradScaler.step and _check_inf_per_device.
        """
        if not self._knows_scales():
            return
        tape = self.tape
        tape.category = "temporaries"
        if not self.is_unscaled:
            self._check(tape.new("full", (), FP32, False))
        _found = tape.new("_to_copy", (), FP32, False) if self.hosted else None
        self.held.append(tape.new("add", (), FP32, False))
        del _found
        if not self.is_unscaled:
            self.held.append(tape.new("mul", (), FP32, False))

    def after_step(self) -> None:
        """`scaler.update`."""
        self.held.clear()

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """The scale."""
        return scaler_states()

    def _knows_scales(self) -> bool:
        return self.setup.optimizer_implementation == "fused" and self.setup.optimizer in KNOW_SCALES

    def _check(self, _inverse: Tensor) -> None:
        """One kernel over all gradients, in place; both scalars are copied to where these are, on the device too.

        What was found is kept there. What was found in the parts of DTensors is the largest over the devices.
        Source: torch/amp/grad_scaler.py, _MultiDeviceReplicator; torch/distributed/tensor/_dispatch.py,
        found_inf_reduce_handler.
        """
        tape = self.tape
        _found = tape.new("full", (), FP32, False)
        if self.hosted:
            return
        self.held.append(tape.new("_to_copy", (), FP32, False))
        _copy = tape.new("_to_copy", (), FP32, False)
        if self.sharded:
            _largest = tape.new("all_reduce", (), FP32, False)
