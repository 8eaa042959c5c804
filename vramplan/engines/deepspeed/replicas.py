"""DeepSpeed without ZeRO: every device has everything, and 16-bit weights are views of one flat tensor.

In fp16 and bf16 FP16_Optimizer steps a flat fp32 copy with Adam, FP16_UnfusedOptimizer one fp32 copy of each weight
with any other optimizer. Each casts all gradients to fp32 before the step; the first makes one flat tensor of these,
and lets the 16-bit gradients go only then. In fp32 the optimizer is the program's own. Gradients are averaged after
backward, in copies of 500,000,000 elements and more, whatever `reduce_bucket_size` says.

Source: DeepSpeed 0.19.6, deepspeed/runtime/engine.py (_do_optimizer_sanity_check, _configure_fp16_optimizer,
buffered_allreduce_fallback, allreduce_no_retain); deepspeed/runtime/fp16/fused_optimizer.py (FP16_Optimizer.step);
deepspeed/runtime/fp16/unfused_optimizer.py (FP16_UnfusedOptimizer.step).
"""

from __future__ import annotations

from vramplan.engines.deepspeed.zero import COMMUNICATION, OVERFLOW_BUFFER_BYTES
from vramplan.replay.gradients import gradient_states
from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.techniques import Shards
from vramplan.replay.tensors import BYTE, FP32, Parameter, Tensor

BUCKET_ELEMENTS = 500_000_000  # engine.py, buffered_allreduce_fallback, elements_per_buffer


class Replicas(Shards):
    """The walk of one iteration: whole gradients, copies of them that are averaged, and the step."""

    divides_loss = True

    def __init__(self, tape: Tape, *, devices: int, flat: bool, master: bool, resident: bool) -> None:
        self.tape, self.devices = tape, devices
        self.flat, self.master = flat and master, master  # one flat tensor of the trained weights; an fp32 copy of them
        self.resident = resident
        self.clips = master  # unscaled and clipped in place
        self.losses: list[Tensor] = []
        self.trained: list[Parameter] = []
        self.wide: Tensor | None = None  # gradients in fp32

    def before_backward(self, loss: Tensor) -> Tensor:
        """The loss over the number of micro-steps, and scaled in fp32."""
        mean = mul_scalar(loss)
        scaled = mul_scalar(mean)
        self.losses = [loss, mean, scaled]
        return scaled

    def after_backward(self) -> list[Parameter]:
        """Gradients are averaged in the order of the parameters; the flat weights stand for them from here on."""
        self.losses.clear()
        tape = self.tape
        self.trained = [one for one in tape.parameters if one.node is not None and not one.idle]
        if self.devices > 1:
            for elements, itemsize in self._copies():
                copy = tape.new("cat", (elements * itemsize,), BYTE, False, category=COMMUNICATION)
                del copy
        if not self.flat:
            return tape.parameters
        flat = Parameter(tape, "flat", (self._elements(),), self.trained[0].dtype, 1, True)
        return [flat, *(one for one in tape.parameters if one not in self.trained)]

    def before_step(self) -> None:
        """All gradients in fp32, beside them in one tensor; those in 16 bits go when that is there."""
        if not self.master:
            return
        tape = self.tape
        each = sum(rounded(one.elements * FP32.itemsize) * one.copies for one in self.trained)
        cast = tape.new("_to_copy", (each,), BYTE, False, category="gradients")
        if not self.flat:
            self.wide = cast
            return
        self.wide = tape.new("cat", (self._elements(),), FP32, False, category="gradients")
        del cast
        for one in self.trained:
            one.grad = None

    def after_step(self) -> None:
        """The gradients go."""
        self.wide = None

    def states(self) -> list[StandingState]:
        """The flag of FusedAdam, and the gradients of earlier micro-steps."""
        states = [StandingState("optimizer", OVERFLOW_BUFFER_BYTES, 0)]
        if self.resident:
            states += gradient_states(self.trained, False)
        return states

    def drop(self) -> None:
        """Nothing more will be asked."""
        self.trained.clear()

    def _elements(self) -> int:
        return sum(one.elements * one.copies for one in self.trained)

    def _copies(self) -> list[tuple[int, int]]:
        """Elements of each copy that is averaged: as soon as there are more than enough."""
        found, elements = [], 0
        for one in self.trained:
            for _ in range(one.copies):
                elements += one.elements
                if elements > BUCKET_ELEMENTS:
                    found.append((elements, one.dtype.itemsize))
                    elements = 0
        last = self.trained[-1].dtype.itemsize if self.trained else 0
        return [*found, (elements, last)] if elements else found
