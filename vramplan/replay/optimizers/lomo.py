"""LOMO as lomo-optim 0.1.1 has it: plain SGD without states, stepped in backward (arXiv:2306.09782).

A hook of each weight's gradient steps those that came before it, so one gradient is alive beside the one that is being
made. FSDP2 sets the gradients of its shards without calling their hooks, so that all are stepped when backward is over.
Without clipping and loss scaling: with either, backward runs twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.replay.autograd import backward
from vramplan.replay.observers import Observer, Sharding
from vramplan.replay.optimizers import Optimizer, one_by_one
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Nothing is left to do after backward."""


def step_waiting(waiting: list[Parameter]) -> None:
    """Step the weights whose gradients are there, when the next gradient arrives, or when backward is over.

    The gradient is cast to fp32 and dropped, then the weight is cast; neither is a copy where it is fp32 already.
    Source: lomo_optim/lomo.py, Lomo.fuse_update and Lomo.fused_backward.
    """
    gradient: Tensor | None = None
    weight: Tensor | None = None
    for parameter in waiting:
        tape = parameter.tape
        gradient, parameter.grad = parameter.grad, None
        if parameter.dtype is not FP32:
            gradient = tape.new("_to_copy", parameter.shape, FP32, False)
            weight = tape.new("_to_copy", parameter.shape, FP32, False)
    waiting.clear()
    del gradient, weight


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return "lomo: none"


class Lomo(Optimizer, Observer):
    """Steps each weight when the gradient of the next one is there, and those that are left after backward."""

    gradients_wait = True

    def backward(self, loss: Tensor, *, received: bool) -> list[Any]:
        """Walk the graph and step on the way."""
        self.waiting: list[Parameter] = []
        self.losses: list[Tensor] = []
        if self.tape.role(Sharding).reduces_in_backward:
            self.losses.append(loss)
            return super().backward(loss, received=received)
        self.tape.observe(self)
        begun = self.begun(loss)
        backward(self.tape, begun, received=received)
        self.step_waiting()
        del begun
        self.tape.ignore(self)
        return []

    def begun(self, loss: Tensor) -> Tensor:
        """What backward begins with."""
        return loss

    def step_waiting(self) -> None:
        """Step the weights whose gradients are there."""
        step_waiting(self.waiting)

    def after_backward(self) -> None:
        """Shards are stepped in the order of the model, each as a waiting weight is, beside the loss.

        A gradient is a view of what was reduced for its unit, which goes with the last one.
        """
        shards = self.tape.role(Sharding)
        if not shards.reduces_in_backward:
            return
        gradient: Tensor | None = None
        weight: Tensor | None = None
        self.tape.category = "temporaries"
        for one in one_by_one(self.tape, [one for one in self.tape.parameters if one.node is not None]):
            if one.dtype is not FP32:
                gradient = self.tape.new("_to_copy", one.shape, FP32, False)
            shards.let_gradient_go(one)
            if one.dtype is not FP32:
                weight = self.tape.new("_to_copy", one.shape, FP32, False)
        del gradient, weight
        self.losses.clear()

    def before_accumulate(self, parameter: Parameter) -> None:
        """The next gradient is there."""
        self.step_waiting()

    def after_accumulate(self, parameter: Parameter) -> None:
        """The weight waits for the next one."""
        self.waiting.append(parameter)


OPTIMIZER = Lomo
