"""GrokAdamW 0.1.2: AdamW over gradients with their slow part amplified, whose states are on the host between steps.

Its step moves the states of one weight to the GPU and back. It clips each gradient by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one
from vramplan.replay.recorder import Tape
from vramplan.replay.techniques.clipping import CHUNK
from vramplan.replay.tensors import FP32, Parameter, Tensor

STATES = 3  # two moments and the average of the gradients


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Nothing on the device: `torch.zeros_like(p, device="cpu")`.

    Source: grokadamw/grokadamw.py, GrokAdamW._update_group.
    """
    return 0


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Weight by weight: its three states, and what the variables of the loop hold of the weight before.

    The moments come before those of the weight before go. The gradient with its average is a tensor of its own.
    Source: grokadamw/grokadamw.py, GrokAdamW._update_group.
    """
    first: Tensor | None = None
    second: Tensor | None = None
    average: Tensor | None = None
    amplified: Tensor | None = None
    for parameter in one_by_one(tape, parameters):
        shape, dtype = parameter.shape, parameter.dtype
        moments = [tape.new("_to_copy", shape, dtype, False) for _ in range(2)]
        first, second = moments
        del moments
        average = tape.new("_to_copy", shape, dtype, False)
        _clip(tape, parameter)
        product = tape.new("mul", shape, dtype, False)
        amplified = tape.new("add", shape, dtype, False)
        del product
        root = tape.new("sqrt", shape, dtype, False)
        del root
    del first, second, average, amplified


def _clip(tape: Tape, parameter: Parameter) -> None:
    """torch.nn.utils.clip_grad_norm_ of one gradient, in place; nobody keeps the norm."""
    dtype = parameter.dtype
    norm = tape.new("_foreach_norm", (), dtype, False)
    partial = tape.new("_foreach_norm", (-(-parameter.elements // CHUNK),), FP32, False, category="workspace")
    del partial
    stacked = tape.new("stack", (1,), dtype, False)
    total = tape.new("linalg_vector_norm", (), dtype, False)
    del norm, stacked
    increased = tape.new("add", (), dtype, False)
    reciprocal = tape.new("reciprocal", (), dtype, False)
    coefficient = tape.new("mul", (), dtype, False)
    del increased, reciprocal
    clamped = tape.new("clamp", (), dtype, False)
    del coefficient, clamped, total


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    return f"grokadamw: none here; {STATES} of {itemsize} B on the host, those of one weight at a time in the step"
