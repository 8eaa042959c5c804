"""CAME of came-pytorch 0.1.3: a first moment, and factors of the second one and of its instability (arXiv:2307.02047).

All of it is fp32, whatever the weights are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from vramplan.replay.optimizers import one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter, Shape, Tensor


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """A first moment; of a matrix two rows and two columns, of a vector a second moment; a root mean square.

    Source: came_pytorch/CAME.py, CAME.step.
    """
    shape = parameter.shape
    found = [shape, ()]
    found += [*factors(shape), *factors(shape)] if len(shape) > 1 else [shape]
    return sum(rounded(prod(one) * FP32.itemsize) for one in found)


def factors(shape: Shape) -> tuple[Shape, Shape]:
    """The shapes of a row and a column: the means over the last dimension, and over the one before it."""
    return shape[:-1], (*shape[:-2], shape[-1])


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Weight by weight; the variables of the loop hold what they have of one until the next has its own.

    These are the gradient in fp32, the update, what separates it from the moment, squared, and the estimate of a matrix
    that is the update in the end. The estimate of the last matrix is there while vectors are stepped.
    Source: came_pytorch/CAME.py, CAME.step.
    """
    gradient: Tensor | None = None
    update: Tensor | None = None
    res: Tensor | None = None
    res_approx: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape, is_matrix = parameter.shape, len(parameter.shape) > 1
        gradient = None
        if parameter.dtype is not FP32:
            gradient = tape.new("_to_copy", shape, FP32, False)
        norm = tape.new("linalg_vector_norm", (), parameter.dtype, False)
        quotient = tape.new("div", (), parameter.dtype, False)  # which replaces that of the step before
        del norm, quotient
        squared = tape.new("pow", shape, FP32, False)
        update = tape.new("add", shape, FP32, False)
        del squared
        update = _estimate(tape, shape) if is_matrix else tape.new("rsqrt", shape, FP32, False)
        _bound(tape)
        res = _instability(tape, shape)
        if is_matrix:
            update = res_approx = _estimate(tape, shape)
        else:
            update = tape.new("clone", shape, FP32, False)
        negated = tape.new("neg", shape, FP32, False)
        del negated
    del gradient, update, res, res_approx


def _instability(tape: Tape, shape: Shape) -> Tensor:
    difference = tape.new("sub", shape, FP32, False)
    _squared = tape.new("pow", shape, FP32, False)
    del difference
    return tape.new("add", shape, FP32, False)


def _bound(tape: Tape) -> None:
    """The root mean square of the update, and its share of the threshold.

    Source: came_pytorch/CAME.py, CAME._rms.
    """
    norm = tape.new("linalg_vector_norm", (), FP32, False)
    quotient = tape.new("div", (), FP32, False)
    del norm
    share = tape.new("div", (), FP32, False)
    del quotient, share


def _estimate(tape: Tape, shape: Shape) -> Tensor:
    """The means of what is estimated, which go into its factors, and a tensor of the rows and the columns.

    Source: came_pytorch/CAME.py, CAME.step and CAME._approx_sq_grad.
    """
    rows, columns = factors(shape)
    for factor in (rows, columns):
        mean = tape.new("mean", factor, FP32, False)
        del mean
    whole = tape.new("mean", (*rows[:-1], 1), FP32, False)
    row_factor = tape.new("div", rows, FP32, False)
    del whole
    column_factor = tape.new("rsqrt", columns, FP32, False)
    estimate = tape.new("mul", shape, FP32, False)
    del row_factor, column_factor
    return estimate


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return "came: one moment, and two rows and two columns of a matrix or another moment of a vector, 4 B each"
