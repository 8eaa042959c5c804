"""APOLLO as apollo-torch 1.0.3 has it: gradients scaled by the AdamW of a random projection (arXiv:2412.05270).

Who is projected: the weights that GaLore projects, those of the linear layers inside the blocks.
The step that is modelled is one of those that draw the projections anew, each `update_proj_gap` steps (200 by default):
no other step needs more.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import one_by_one, own_states
from vramplan.replay.optimizers.galore import is_projected, rank_of
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter, Shape, Tensor

WORD = "apollo-adamw"


def shapes_of(shape: Shape, rank: int) -> tuple[Shape, Shape]:
    """A projected gradient and its projection: the shorter side becomes the rank.

    Source: apollo_torch/random_projector.py, GradientProjector.project, proj_type "std".
    """
    rows, columns = shape
    return ((rows, rank), (rank, columns)) if rows >= columns else ((rank, columns), (rows, rank))


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments of the projected gradient, the projection and a norm; two of the parameter's own shape for all else.

    Source: apollo_torch/apollo.py, AdamW.step.
    """
    if not is_projected(parameter):
        return own_states(parameter, "adamw", implementation)
    itemsize = parameter.dtype.itemsize
    low, projection = (rounded(a * b * itemsize) for a, b in shapes_of(parameter.shape, rank_of(optimizer)))
    return 2 * low + projection + rounded(itemsize)


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter, those that are not projected first; locals live until the next parameter replaces them.

    The gradient is scaled in its own shape, channel by channel, and once more by the limit of its growth, for which its
    norm is taken. That limit is a number where the gradient has not grown by more than 1 %, and else a scalar.
    Source: apollo_torch/apollo.py, AdamW.step, with its defaults and those of the Trainer (`scale_type: channel`).
    """
    rank = rank_of(optimizer)
    gradient: Tensor | None = None
    denominator: Tensor | None = None
    factors: Tensor | None = None
    scaled: Tensor | None = None
    norm: Tensor | None = None
    update: Tensor | None = None
    plain = [one for one in parameters if not is_projected(one)]
    for parameter in one_by_one(tape, [*plain, *(one for one in parameters if is_projected(one))]):
        shape, dtype = parameter.shape, parameter.dtype
        gradient = None  # the parameter's own
        if is_projected(parameter):
            low, projection_shape = shapes_of(shape, rank)
            projection = _draw(tape, parameter, projection_shape)
            del projection  # it replaces the one that is among the states
            gradient = tape.new("mm", low, dtype, False)
            denominator = tape.new("sqrt", low, dtype, False)
            update = tape.new("div", low, dtype, False)
            channels = (max(shape),)
            norms = tape.new("linalg_vector_norm", channels, dtype, False)
            others = tape.new("add", channels, dtype, False)
            factors = tape.new("div", channels, dtype, False)
            del norms, others
            scaled = tape.new("mul", shape, dtype, False)
            norm = tape.new("linalg_vector_norm", (), dtype, False)
            limited = tape.new("div", shape, dtype, False)
            scaled = update = limited
            del limited
        else:
            denominator = tape.new("sqrt", shape, dtype, False)
            update = tape.new("div", shape, dtype, False)
    del gradient, denominator, factors, scaled, norm, update


def _draw(tape: Tape, parameter: Parameter, shape: Shape) -> Tensor:
    """A random projection, made in fp32; the gradient is cast to fp32 first, though its shape alone is read.

    Source: apollo_torch/random_projector.py, GradientProjector.get_orthogonal_matrix.
    """
    half = parameter.dtype is not FP32
    _matrix = tape.new("_to_copy", parameter.shape, FP32, False) if half else None
    drawn = tape.new("randn", shape, FP32, False)
    projection = tape.new("div", shape, FP32, False)
    del drawn
    return tape.new("_to_copy", shape, parameter.dtype, False) if half else projection


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    rank = rank_of(optimizer)
    what = f"of each linear weight in a block two moments of rank {rank} and a random projection"
    return f"{WORD}: {what}, two moments of all else, {itemsize} B each"
