"""AdamW, SGD and RAdam without a schedule, as schedulefree 1.4.1 has them (arXiv:2405.15682).

Weights are those of training (`optimizer.train()`); what turns them into those of evaluation and back works in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import new_of_each, one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import Parameter, Tensor

STATES = {"schedule-free-adamw": 2, "schedule-free-sgd": 1, "schedule-free-radam": 2}
SGD = "schedule-free-sgd"


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """A second copy of the weight (z), and of the adaptive ones a second moment; in the dtype of the weight.

    Source: schedulefree/adamw_schedulefree.py, AdamWScheduleFree.step; sgd_schedulefree.py; radam_schedulefree.py.
    """
    return STATES[optimizer] * rounded(parameter.elements * parameter.dtype.itemsize)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """The square roots of the second moments, of all weights or of one after the other; the gradients are overwritten.

    SGD needs none, and RAdam none in its first steps.
    Source: schedulefree/adamw_schedulefree.py, AdamWScheduleFree.step; sgd_schedulefree.py; radam_schedulefree.py.
    """
    if optimizer == SGD:
        return
    if implementation == "foreach":
        _denominators = new_of_each(tape, "_foreach_div", parameters)
        return
    denominator: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        denominator = tape.new("div", parameter.shape, parameter.dtype, False)
    del denominator


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    second = "" if optimizer == SGD else ", and a second moment"
    return f"{optimizer}: a second copy of each weight{second}, {itemsize} B each"
