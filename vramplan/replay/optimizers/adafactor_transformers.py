"""Adafactor of Transformers 5.23, which is what `optim="adafactor"` of the Trainer means: another class than PyTorch's.

It goes through the weights one by one, in fp32 whatever they are in, so its scratch is that of a weight or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.replay.optimizers import adafactor_shapes, one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter, Shape, Tensor


def state_bytes(shape: Shape) -> tuple[int, ...]:
    """The tensors of a state in fp32: factors of a shape, or all of a vector, and the root mean square of the weight.

    Source: transformers/optimization.py, Adafactor.step.
    """
    factors = tuple(rounded(prod(one) * FP32.itemsize) for one in adafactor_shapes(shape))
    return (*factors, rounded(FP32.itemsize))


def step(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """Weight by weight; the variables of the loop hold what they have of one until the next has its own.

    The squared gradient with epsilon is there until the update is, and beside both in the first moments of a weight is
    the update of the one before. The update is negated in a tensor of its own. Weights in 16 bits and their gradients
    are copied to fp32 first.
    Source: transformers/optimization.py, Adafactor.step, _rms and _approx_sq_grad.
    """
    gradient: Tensor | None = None
    weight: Tensor | None = None
    update: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape = parameter.shape
        gradient = None
        if parameter.dtype is not FP32:
            gradient = tape.new("to", shape, FP32, False)
        weight = None
        if parameter.dtype is not FP32:
            weight = tape.new("to", shape, FP32, False)
        root_mean_square(tape)
        squared = tape.new("pow", shape, FP32, False)
        with_epsilon = tape.new("add", shape, FP32, False)
        del squared
        update = with_epsilon
        del with_epsilon
        estimate = estimate_of(tape, shape)
        update = estimate
        del estimate
        root_mean_square(tape, clipped=True)
        negated = tape.new("neg", shape, FP32, False)
        del negated
    del gradient, weight, update


def root_mean_square(tape: Tape, *, clipped: bool = False) -> None:
    """A norm and its quotient, and where the update is clipped by it one more.

    Source: transformers/optimization.py, Adafactor._rms and Adafactor.step.
    """
    norm = tape.new("linalg_vector_norm", (), FP32, False)
    quotient = tape.new("div", (), FP32, False)
    del norm
    if clipped:
        share = tape.new("div", (), FP32, False)
        del quotient, share


def estimate_of(tape: Tape, shape: Shape) -> Tensor:
    """The update, before the gradient comes in: of the factors of a matrix, or of the variance of a vector.

    Source: transformers/optimization.py, Adafactor._approx_sq_grad and Adafactor.step.
    """
    if len(shape) < 2:
        return tape.new("rsqrt", shape, FP32, False)
    rows, columns = adafactor_shapes(shape)
    for factor in (rows, columns):
        mean = tape.new("mean", factor, FP32, False)
        del mean
    whole = tape.new("mean", (*shape[:-2], 1, 1), FP32, False)
    row_factor = tape.new("div", rows, FP32, False)
    del whole
    column_factor = tape.new("rsqrt", columns, FP32, False)
    estimate = tape.new("mul", shape, FP32, False)
    del row_factor, column_factor
    return estimate
