"""Adafactor of torch.optim 2.13: a row and a column factor of each matrix, and updates of all matrices at once."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import adafactor_shapes, copies_of, in_groups, new_of_each, one_by_one
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Parameter, Tensor


def step(tape: Tape, parameters: Sequence[Parameter], implementation: str) -> None:
    """Replay the step: foreach or a loop."""
    (_adafactor_foreach if implementation == "foreach" else _adafactor_loop)(tape, parameters)


def _adafactor_foreach(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """`_multi_tensor_adafactor`: matrices and vectors apart, in the order of the first of each; a group's updates live
    until those of the next are there, and the last ones until the end.

    Source: torch/optim/_adafactor.py, _multi_tensor_adafactor and _group_tensors_by_device_dtype_and_is_multidim.
    """
    updates: list[Tensor] = []
    for same in in_groups(parameters):
        matrices = [parameter for parameter in same if len(parameter.shape) > 1]
        vectors = [parameter for parameter in same if len(parameter.shape) < 2]
        for group in (matrices, vectors) if len(same[0].shape) > 1 else (vectors, matrices):
            if group:
                updates = _adafactor_updates(tape, group)
                norm = tape.new("norm", (), group[0].dtype, False)  # of one update at a time, which is read
                del norm
    del updates


def _adafactor_updates(tape: Tape, parameters: Sequence[Parameter]) -> list[Tensor]:
    """The updates of matrices, or of vectors.

    Source: torch/optim/_adafactor.py, _multi_tensor_adafactor.
    """
    if len(parameters[0].shape) < 2:
        squares = new_of_each(tape, "_foreach_mul", parameters)
        del squares
        return new_of_each(tape, "clone", parameters)
    for dim in (-1, -2):
        means = [
            tape.several(
                "norm", adafactor_shapes(parameter.shape)[dim + 1], parameter.dtype, copies_of(tape, parameter)
            )
            for parameter in parameters
        ]
        del means
    updates = new_of_each(tape, "mm", parameters)
    row_means = [
        tape.several("mean", (*parameter.shape[:-2], 1, 1), parameter.dtype, copies_of(tape, parameter))
        for parameter in parameters
    ]
    del row_means
    return updates


def _adafactor_loop(tape: Tape, parameters: Sequence[Parameter]) -> None:
    """`_single_tensor_adafactor`: one update at a time; its locals live until the next parameter replaces them.

    Source: torch/optim/_adafactor.py, _single_tensor_adafactor.
    """
    row_mean: Tensor | None = None
    column_mean: Tensor | None = None
    square: Tensor | None = None
    update: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        norm = tape.new("linalg_vector_norm", (), parameter.dtype, False)
        del norm
        if len(parameter.shape) < 2:
            square = tape.new("mul", parameter.shape, parameter.dtype, False)
            estimate = tape.new("clone", parameter.shape, parameter.dtype, False)
        else:
            rows, columns = adafactor_shapes(parameter.shape)
            row_mean = tape.new("norm", rows, parameter.dtype, False)
            column_mean = tape.new("norm", columns, parameter.dtype, False)
            estimate = tape.new("mm", parameter.shape, parameter.dtype, False)
            mean = tape.new("mean", (*parameter.shape[:-2], 1, 1), parameter.dtype, False)
            del mean
        update = estimate
        del estimate
        norm = tape.new("linalg_vector_norm", (), parameter.dtype, False)
        del norm
    del row_mean, column_mean, square, update
