"""Prodigy of prodigyopt 1.1.2: Adam that finds its rate by how far the weights are from where they began.

Source: arXiv:2306.06101, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import Parameter, Tensor

STATES = 3  # two moments, and the sum of the gradients
BEGINS_AT_ZERO = "lora_B"  # a name of PEFT's: the second matrix of LoRA


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments, a sum of the gradients and the weight as it was; one number of a weight that begins with zeros.

    Source: prodigyopt/prodigy.py, Prodigy.step (slice_p=1).
    """
    itemsize = parameter.dtype.itemsize
    whole = rounded(parameter.elements * itemsize)
    first = rounded(itemsize) if BEGINS_AT_ZERO in parameter.name else whole
    return STATES * whole + first


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Twice weight by weight: how far it has come, and the size of its sum; then the roots of the second moments.

    Source: prodigyopt/prodigy.py, Prodigy.step.
    """
    for parameter in one_by_one(tape, parameters):
        dtype = parameter.dtype
        moved = tape.new("sub", (parameter.elements,), dtype, False)
        product = tape.new("dot", (), dtype, False)
        del moved, product
        size = tape.new("abs", (parameter.elements,), dtype, False)
        total = tape.new("sum", (), dtype, False)
        del size, total
    denominator: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        denominator = tape.new("sqrt", parameter.shape, parameter.dtype, False)
    del denominator


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"prodigy: two moments, a sum of gradients and the first value of each weight, {itemsize} B each"
