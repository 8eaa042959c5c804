"""Optimizer states and the scratch of a step, as torch.optim 2.13 allocates them.

Sources: torch/optim/{adamw,adam,sgd,rmsprop,_adafactor}.py, functions `_multi_tensor_*` (foreach), `_fused_*` and
`_single_tensor_*` (for-loop), each with its default arguments. With fp32 master weights ("mixed") one fused kernel
steps the master copy: fp32 states, no scratch (ZeRO, arXiv:1910.02054 section 3.1; apex/DeepSpeed FusedAdam).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from vramplan.memory.precision import Precision
from vramplan.tape.record import State
from vramplan.tape.tape import Tape, rounded
from vramplan.tape.tensors import FP32, Parameter, Shape, Tensor

# states of a parameter's own shape, by optimizer
MOMENTS = {"adamw": 2, "adam": 2, "sgd": 0, "sgd-momentum": 1, "rmsprop": 1}
STEP_COUNTER_BYTES = rounded(4)  # fused Adam keeps its step count on the device, one tensor a parameter


def optimizer_states(
    parameters: Sequence[Parameter], optimizer: str, implementation: str, precision: Precision
) -> list[State]:
    """What the optimizer holds during the whole iteration, each tensor in allocator blocks, summed by component.

    Adam and AdamW hold two moments of each parameter's own shape, RMSprop and SGD with momentum one, Adafactor the
    factors of one; fused Adam also a step count on the device. With fp32 master weights the states are fp32, beside the
    master copy.
    Source: torch/optim/adamw.py, adam.py, sgd.py, rmsprop.py, _adafactor.py, `_init_group`; arXiv:1910.02054, section
    3.1.
    """
    master = moments = 0
    for parameter in parameters:
        if parameter.node is None:
            continue
        dtype = FP32 if precision.master else parameter.dtype
        own = rounded(parameter.elements * dtype.itemsize)
        if precision.master:
            master += own * parameter.copies
        if optimizer == "adafactor":
            size = sum(rounded(prod(shape) * dtype.itemsize) for shape in adafactor_shapes(parameter.shape))
        else:
            size = own * MOMENTS[optimizer]
            if implementation == "fused" and optimizer in ("adamw", "adam") and not precision.master:
                size += STEP_COUNTER_BYTES
        moments += size * parameter.copies
    return [State("master", master, 0), State("optimizer", moments, 0)]


def adafactor_shapes(shape: Shape) -> list[Shape]:
    """A row and a column factor of a matrix; the whole variance of a vector.

    Source: arXiv:1804.04235, section 3; torch/optim/_adafactor.py, `_init_group`.
    """
    if len(shape) > 1:
        return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])]
    return [shape]


def step(tape: Tape, optimizer: str, implementation: str, precision: Precision) -> None:
    """Replay one optimizer step: births and deaths of its scratch.

    Fused kernels and SGD need none. Foreach kernels make one square root for every parameter, all alive at once; the
    for-loop makes them one parameter at a time.
    Source: torch/optim/adamw.py, adam.py, sgd.py and rmsprop.py, `_fused_*`, `_multi_tensor_*` and `_single_tensor_*`.
    """
    parameters = [parameter for parameter in tape.parameters if parameter.node is not None]
    tape.category = "temporaries"
    if precision.master or implementation == "fused" or optimizer in ("sgd", "sgd-momentum"):
        return
    if optimizer == "adafactor":
        (_adafactor_foreach if implementation == "foreach" else _adafactor_loop)(tape, parameters)
    elif implementation == "foreach":
        _roots = _foreach(tape, "_foreach_sqrt", parameters)  # the square roots of the second moments, all at once
        del _roots
    elif optimizer == "rmsprop":
        root: Tensor | None = None
        for parameter in _one_by_one(tape, parameters):
            root = tape.new("sqrt", parameter.shape, parameter.dtype, False)  # the previous one dies here
        del root
    else:
        denominator: Tensor | None = None
        for parameter in _one_by_one(tape, parameters):
            square = tape.new("sqrt", parameter.shape, parameter.dtype, False)
            quotient = tape.new("div", parameter.shape, parameter.dtype, False)
            del square
            denominator = quotient
            del quotient
        del denominator


def _one_by_one(tape: Tape, parameters: Sequence[Parameter]) -> Iterator[Parameter]:
    """Each parameter inside the repeated units that it was made in: one that stands for several is stepped as often."""
    for parameter in parameters:
        tape.enter(parameter.path)
        yield parameter
    tape.enter(())


def _foreach(tape: Tape, operator: str, parameters: Sequence[Parameter], shape: Shape | None = None) -> list[Tensor]:
    """One tensor for every parameter, each copy counted."""
    return [
        tape.several(operator, parameter.shape if shape is None else shape, parameter.dtype, parameter.copies)
        for parameter in parameters
    ]


def _adafactor_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """`_multi_tensor_adafactor`: matrices, then vectors; the updates of the first group outlive it.

    Source: torch/optim/_adafactor.py, _multi_tensor_adafactor.
    """
    matrices = [parameter for parameter in parameters if len(parameter.shape) > 1]
    vectors = [parameter for parameter in parameters if len(parameter.shape) == 1]
    for dim in (-1, -2):
        means = [
            tape.several("norm", adafactor_shapes(parameter.shape)[dim + 1], parameter.dtype, parameter.copies)
            for parameter in matrices
        ]
        del means
    updates = _foreach(tape, "mm", matrices)
    row_means = _foreach(tape, "mean", matrices, (1, 1))
    del row_means
    squares = _foreach(tape, "_foreach_mul", vectors)
    del squares
    estimates = _foreach(tape, "clone", vectors)
    del updates, estimates


def _adafactor_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """`_single_tensor_adafactor`: one update at a time; its locals live until the next parameter replaces them.

    Source: torch/optim/_adafactor.py, _single_tensor_adafactor.
    """
    row_mean: Tensor | None = None
    column_mean: Tensor | None = None
    square: Tensor | None = None
    update: Tensor | None = None
    for parameter in _one_by_one(tape, parameters):
        if len(parameter.shape) == 1:
            square = tape.new("mul", parameter.shape, parameter.dtype, False)
            estimate = tape.new("clone", parameter.shape, parameter.dtype, False)
        else:
            rows, columns = adafactor_shapes(parameter.shape)
            row_mean = tape.new("norm", rows, parameter.dtype, False)
            column_mean = tape.new("norm", columns, parameter.dtype, False)
            estimate = tape.new("mm", parameter.shape, parameter.dtype, False)
            mean = tape.new("mean", (1, 1), parameter.dtype, False)
            del mean
        update = estimate
        del estimate
    del row_mean, column_mean, square, update
