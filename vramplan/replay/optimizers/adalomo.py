"""AdaLomo as lomo-optim 0.1.1 has it: Adafactor's factors and relative steps, stepped in backward (arXiv:2310.10195).

It steps when LOMO does. Its states are there from the beginning, also those of weights that are not trained, for it
looks at the shape of every weight alone. The loss is scaled by 1024, whatever its type.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.operators.elementwise import mul_scalar
from vramplan.replay.optimizers.lomo import Lomo
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import BOOL, FP32, Parameter, Shape, Tensor

WORD = "adalomo"


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """In fp32 a number for each row and one for each column of a matrix; one for each element of a vector.

    Source: lomo_optim/adalomo.py, AdaLomo.__init__.
    """
    return sum(rounded(size * FP32.itemsize) for size in stored_shape(parameter)[:2])


def stored_shape(parameter: Parameter) -> Shape:
    """The shape of a weight as it lies there: weights of 4 bits are a column of bytes, two to a byte.

    Source: bitsandbytes 0.50.2, nn/modules.py, Params4bit._quantize.
    """
    packed = parameter.quantized[:1]
    return (packed[0], 1) if packed and packed[0] < parameter.elements else parameter.shape


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Nothing is left to do after backward."""


def step_waiting(waiting: list[Parameter]) -> None:
    """Step the weights whose gradients are there; the variables of the loop hold what they have until the next weight.

    Weight and gradient are cast to fp32 where they are not. The squared gradient is there until the update that its
    factors give is. The norm of the weight scales the rate, which is a scalar then.
    Source: lomo_optim/adalomo.py, AdaLomo.fuse_update, _approx_sq_grad and _rms.
    """
    gradient: Tensor | None = None
    update: Tensor | None = None
    weight: Tensor | None = None
    norm: Tensor | None = None
    rate: Tensor | None = None
    for parameter in waiting:
        tape, shape = parameter.tape, parameter.shape
        if parameter.dtype is FP32:
            gradient, parameter.grad = parameter.grad, None
        else:
            gradient = tape.new("_to_copy", shape, FP32, False)
            parameter.grad = None
        squared = tape.new("pow", shape, FP32, False)
        with_epsilon = tape.new("add", shape, FP32, False)
        del squared
        update = with_epsilon
        del with_epsilon
        estimate = _estimate(tape, shape)
        update = estimate
        del estimate
        _scalars(tape, 3)
        if parameter.dtype is not FP32:
            weight = tape.new("_to_copy", shape, FP32, False)
        length = tape.new("linalg_vector_norm", (), FP32, False)
        quotient = tape.new("div", (), FP32, False)
        del length
        norm, rate = quotient, None
        del quotient
        larger = tape.new("gt", (), BOOL, False)
        del larger
        rate = tape.new("mul", (), FP32, False)
        negated = tape.new("neg", (), FP32, False)
        del negated
    waiting.clear()
    del gradient, update, weight, norm, rate


def _scalars(tape: Tape, number: int) -> None:
    """So many scalars, each there until the next one is: a root mean square, and its share of the threshold."""
    last: Tensor | None = None
    for _ in range(number):
        last = tape.new("div", (), FP32, False)
    del last


def _estimate(tape: Tape, shape: Shape) -> Tensor:
    """The update, before the gradient comes in."""
    if len(shape) < 2:
        return tape.new("rsqrt", shape, FP32, False)
    for side in shape:
        mean = tape.new("mean", (side,), FP32, False)
        del mean
    whole = tape.new("mean", (1,), FP32, False)
    of_rows = tape.new("div", shape[:1], FP32, False)
    del whole
    of_columns = tape.new("rsqrt", shape[1:], FP32, False)
    estimate = tape.new("mul", shape, FP32, False)
    del of_rows, of_columns
    return estimate


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"{WORD}: of each weight, trained or not, a number for each row and each column, {FP32.itemsize} B each"


class AdaLomo(Lomo):
    """Steps as LOMO does, over a scaled loss."""

    def begun(self, loss: Tensor) -> Tensor:
        """The loss times its scale.

        Source: lomo_optim/adalomo.py, AdaLomo.fused_backward.
        """
        return mul_scalar(loss)

    def step_waiting(self) -> None:
        """Step the weights whose gradients are there."""
        step_waiting(self.waiting)

    def states(self) -> list[StandingState]:
        """Those of all weights."""
        size = sum(states(one, self.name, self.implementation, False) * one.copies for one in self.tape.parameters)
        return [StandingState("optimizer", size, 0)]


OPTIMIZER = AdaLomo
