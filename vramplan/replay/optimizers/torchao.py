"""AdamW of torchao 0.18 with states in 8 and 4 bits and in fp8: a scale for each block, and a table of values.

Its step is compiled, so that it is counted by a rule and not traced.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter
from vramplan.tuples import NamedTuple

SMALLEST = 4096  # elements: smaller parameters have states of their own type


class Format(NamedTuple):
    """How a state is stored."""

    bits: int
    block: int  # elements that share a scale in fp32
    values: int  # of the table that a code is looked up in


FORMATS = {
    "adamw-8bit-torchao": Format(8, 256, 256),
    "adamw-4bit-torchao": Format(4, 128, 16),
    "adamw-fp8-torchao": Format(8, 256, 0),
}


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments in few bits: codes, scales, and a table each; in the parameter's own type where it is small.

    Source: torchao/optim/adam.py, _AdamBase._new_buffer; optim/subclass_8bit.py, subclass_4bit.py and subclass_fp8.py.
    """
    found, elements = FORMATS[optimizer], parameter.elements
    if elements < SMALLEST or elements % found.block:
        return 2 * rounded(elements * parameter.dtype.itemsize)
    scales = rounded(elements // found.block * FP32.itemsize)
    table = rounded(found.values * FP32.itemsize) if found.values else 0
    return 2 * (rounded(elements * found.bits // 8) + scales + table)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing: each state has its own table."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter: both new moments in fp32, and their new scales.

    That is what Inductor 2.13 allocates for the CPU, where the rounding to codes is a loop of its own. A GPU, on which
    one kernel may do both, has at most as much.
    Source: torchao/optim/adam.py, single_param_adam.
    """
    block = FORMATS[optimizer].block
    for parameter in one_by_one(tape, parameters):
        if parameter.elements < SMALLEST or parameter.elements % block:
            continue
        blocks = (parameter.elements // block,)
        _scales = [tape.new("amax", blocks, FP32, False) for _ in range(2)]
        _moments = [tape.new("lerp", parameter.shape, FP32, False) for _ in range(2)]
        del _scales, _moments


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    found = FORMATS[optimizer]
    return f"{optimizer}: two moments of {found.bits} bits, a scale for {found.block} elements, a table of values each"
