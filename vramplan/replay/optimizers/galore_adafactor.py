"""GaLore over the Adafactor of Transformers, as galore-torch 1.0 has it (arXiv:2403.03507).

Who is projected, and in which step, is that of GaLore over AdamW. Gradients are cast to fp32 before they are projected,
so that what is kept of a decomposition is the whole square factor whatever the weights are in.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import adafactor_transformers as adafactor
from vramplan.replay.optimizers import one_by_one
from vramplan.replay.optimizers.galore import decompose, is_projected, low_rank_shape, projection_bytes, rank_of
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32, Parameter, Tensor

WORD = "galore-adafactor"


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """A row and a column of the projected gradient and the projection; those of the weight itself for all else.

    Source: galore_torch/adafactor.py, Adafactor.step.
    """
    if not is_projected(parameter):
        return sum(adafactor.state_bytes(parameter.shape))
    rank = rank_of(optimizer)
    return sum(adafactor.state_bytes(low_rank_shape(parameter.shape, rank))) + projection_bytes(parameter, rank, FP32)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter, those that are not projected first; locals live until the next parameter replaces them.

    The whole gradient in fp32 is there until it is projected. The update is made in the subspace, multiplied back,
    scaled and negated: three tensors of the weight's shape, of which two are there at a time.
    Source: galore_torch/adafactor.py, Adafactor.step; galore_torch/galore_projector.py, GaLoreProjector.project_back.
    """
    rank = rank_of(optimizer)
    gradient: Tensor | None = None
    weight: Tensor | None = None
    update: Tensor | None = None
    plain = [one for one in parameters if not is_projected(one)]
    for parameter in one_by_one(tape, [*plain, *(one for one in parameters if is_projected(one))]):
        shape, half = parameter.shape, parameter.dtype is not FP32
        gradient = None  # the parameter's own
        if half:
            gradient = tape.new("to", shape, FP32, False)
        if is_projected(parameter):
            projection = decompose(tape, parameter, rank, FP32)
            del projection  # it replaces the one that is among the states
            shape = low_rank_shape(shape, rank)
            projected = tape.new("mm", shape, FP32, False)
            gradient = projected
            del projected
        weight = None  # the parameter's own
        if half:
            weight = tape.new("to", parameter.shape, FP32, False)
        adafactor.root_mean_square(tape)
        squared = tape.new("pow", shape, FP32, False)
        with_epsilon = tape.new("add", shape, FP32, False)
        del squared
        update = with_epsilon
        del with_epsilon
        estimate = adafactor.estimate_of(tape, shape)
        update = estimate
        del estimate
        adafactor.root_mean_square(tape, clipped=True)
        if is_projected(parameter):
            full = tape.new("mm", parameter.shape, FP32, False)
            scaled = tape.new("mul", parameter.shape, FP32, False)
            del full
            update = scaled
            del scaled
        negated = tape.new("neg", parameter.shape, FP32, False)
        del negated
    del gradient, weight, update


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    rank = rank_of(optimizer)
    what = f"of each linear weight in a block a row and a column of rank {rank} and a whole square factor"
    return f"{WORD}: {what}, a row and a column of all else, {FP32.itemsize} B each"
