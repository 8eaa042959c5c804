"""Gradients that are there when an iteration begins: those of earlier micro-steps, or buffers that stay."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.observers import Accumulation, Resident
from vramplan.replay.recorder import IN_ANOTHERS, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Technique
from vramplan.replay.tensors import FP32, Parameter, Tensor

EARLIER = "gradients of earlier micro-steps"


def gradient_bytes(parameter: Parameter, in_fp32: bool) -> int:
    """Bytes of one copy's gradient between micro-steps, in allocator blocks.

    The first micro-step has made it; where it is a view, as that of a class token at micro-batch 1, it keeps the whole.
    Of several views of one tensor the first counts it.
    """
    if parameter.grad_bytes == IN_ANOTHERS and not in_fp32:
        return 0
    own = rounded(parameter.elements * (FP32 if in_fp32 else parameter.dtype).itemsize)
    return own if in_fp32 else max(own, parameter.grad_bytes)


def gradient_states(parameters: Sequence[Parameter], in_fp32: bool) -> list[StandingState]:
    """Gradients that are there when the iteration begins, each in allocator blocks: of the weights' dtype, or in fp32.

    In fp32 they are the buffers that Megatron (`main_grad`) and DeepSpeed (BF16_Optimizer) sum half-precision gradients
    in: megatron/core/distributed/param_and_grad_buffer.py; deepspeed/runtime/bf16_optimizer.py.
    """
    size = 0
    for one in parameters:
        if one.node is not None:
            size += gradient_bytes(one, in_fp32) * one.copies
    return [StandingState("gradients", size, 0)]


class ResidentGradients(Technique):
    """Gradients of earlier micro-steps, or buffers of the runtime: backward adds to them."""

    def before_model(self) -> None:
        """Accumulators of gradients find one there."""
        self.tape.enlist(Accumulation, Resident())

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """Those of one device; how devices share them is known to the sharding."""
        if self.setup.sharding is not None:
            return []
        reached = [one for one in self.tape.parameters if not one.idle]
        return gradient_states(reached, self.setup.fp32_gradients)


class GoingGradients(ResidentGradients):
    """Gradients of earlier micro-steps that the optimizer lets go of one by one, before its step is over.

    One storage stands for them until then: which weights there are is known when the model has run.
    """

    _earlier: Tensor | None = None

    def before_forward(self) -> None:
        """They are there."""
        self._earlier = self.tape.new(EARLIER, (), FP32, False, category="gradients")

    def before_step(self) -> None:
        """Each is its own from now on."""
        tape, earlier = self.tape, self._earlier
        assert earlier is not None
        assert earlier.storage is not None
        trained = [one for one in tape.parameters if one.node is not None]
        size = sum(gradient_bytes(one, self.setup.fp32_gradients) * one.copies for one in trained)
        tape.resize(earlier.storage.index, size)
        self._earlier = None
        del earlier
        for one in trained:
            if one.grad is None:
                one.grad = tape.new(EARLIER, one.shape, one.dtype, False, category="gradients")

    def states(self, buffers: Sequence[int]) -> list[StandingState]:
        """None that stays."""
        return []
