"""ADOPT and AdamC, which are code of Axolotl 0.19's own (arXiv:2411.02853, arXiv:2506.02285).

The first step of ADOPT makes its second moments alone; what is here is that of every other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import in_groups, new_of_each, one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import Parameter, Tensor

MOMENTS = 2
ADOPT = "adopt"


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments in the dtype of the weight.

    Source: axolotl/utils/optimizers/adopt.py, ADOPT._init_group; adamc.py, AdamC.step.
    """
    return MOMENTS * rounded(parameter.elements * parameter.dtype.itemsize)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """The square roots of the second moments; of ADOPT also the gradients that are divided by them.

    Source: axolotl/utils/optimizers/adopt.py, _multi_tensor_adopt and _single_tensor_adopt; adamc.py,
    _multi_tensor_adamc and _single_tensor_adamc.
    """
    if implementation == "foreach":
        roots: list[Tensor] = []
        divided: list[Tensor] = []
        for group in in_groups(parameters):
            roots = new_of_each(tape, "_foreach_sqrt", group)
            if optimizer == ADOPT:
                divided = new_of_each(tape, "_foreach_div", group)
        del roots, divided
        return
    denominator: Tensor | None = None
    gradient: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape, dtype = parameter.shape, parameter.dtype
        root = tape.new("sqrt", shape, dtype, False)
        made = tape.new("clamp" if optimizer == ADOPT else "div", shape, dtype, False)
        del root
        denominator = made
        del made
        if optimizer == ADOPT:
            gradient = tape.new("div", shape, dtype, False)
    del denominator, gradient


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"{optimizer}: two moments of {itemsize} B"
