"""Adam-mini 1.1.1: one second moment for each row of a matrix, for each head of queries and keys (arXiv:2406.16793).

Norms and whatever else has no name that it knows have one second moment as a whole, biases one for each element.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one, own_states
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import Parameter, Tensor

WORD = "adam-mini"


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """A moment of the parameter's own shape, and a number for each row of a matrix; of a bias two moments.

    Queries and keys have a number for each head, which is counted as one for each row: some KiB more.
    Source: adam_mini/adam_mini.py, Adam_mini.step.
    """
    if "bias" in parameter.name:
        return own_states(parameter, "adamw", "for-loop")
    itemsize = parameter.dtype.itemsize
    rows = parameter.shape[0] if len(parameter.shape) > 1 else 1
    return rounded(parameter.elements * itemsize) + rounded(rows * itemsize)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter; the variables of the loop hold what they have of one until the next has its own.

    The squared gradient comes first, and is there until its mean is; the update is negated in a tensor of its own.
    Source: adam_mini/adam_mini.py, Adam_mini.step.
    """
    tmp_lr: Tensor | None = None
    h: Tensor | None = None
    stepsize: Tensor | None = None
    update: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape, dtype = parameter.shape, parameter.dtype
        if "bias" in parameter.name:
            root = tape.new("sqrt", shape, dtype, False)
            h = tape.new("div", shape, dtype, False)
            del root
            continue
        squared = tape.new("mul", shape, dtype, False)
        rows = (shape[0], 1) if len(shape) > 1 else ()
        tmp_lr = tape.new("mean", rows, dtype, False)
        del squared
        root = tape.new("sqrt", rows, dtype, False)
        h = tape.new("div", rows, dtype, False)
        del root
        inverse = tape.new("reciprocal", rows, dtype, False)
        stepsize = tape.new("mul", rows, dtype, False)
        del inverse
        update = tape.new("mul", shape, dtype, False)
        negated = tape.new("neg", shape, dtype, False)
        del negated
    del tmp_lr, h, stepsize, update


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"{WORD}: one moment of each parameter's shape, and a number for each of its rows, {itemsize} B each"
