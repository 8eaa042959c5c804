"""GaLore over the 8-bit AdamW of bitsandbytes, as galore-torch 1.0 has it (arXiv:2403.03507).

Who is projected, and in which step, is that of GaLore over AdamW. A projected gradient takes the place of the gradient,
and of the weight while the kernel runs, which then sees small matrices alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.optimizers import bitsandbytes as bnb
from vramplan.replay.optimizers import one_by_one
from vramplan.replay.optimizers.galore import decompose, is_projected, low_rank_shape, projection_bytes, rank_of
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.tensors import FP32, Parameter

WORD, KERNEL = "galore-adamw-8bit", "adamw-8bit"
NORM = rounded(FP32.itemsize)


def states(parameter: Parameter, optimizer: str, implementation: str, wide_embeddings: bool) -> int:
    """Two moments of a byte for each element of the projected gradient, their maxima, the projection and a norm.

    Parameters and projected gradients below 4096 elements have moments in fp32. The norm is that of updates:
    galore-torch means `percentile_clipping=100` where bitsandbytes 0.50 takes `max_unorm`.
    Source: galore_torch/adamw8bit.py, AdamW8bit.step; bitsandbytes/optim/optimizer.py, Optimizer2State.init_state.
    """
    if not is_projected(parameter):
        return bnb.states(parameter, KERNEL, implementation, wide_embeddings=False) + NORM
    rank = rank_of(optimizer)
    rows, columns = low_rank_shape(parameter.shape, rank)
    small = rows * columns < bnb.SMALLEST_8BIT
    moment = rounded(rows * columns * (FP32.itemsize if small else 1))
    maxima = 0 if small else rounded(-(-rows * columns // bnb.BLOCK) * FP32.itemsize)
    return 2 * (moment + maxima) + projection_bytes(parameter, rank, parameter.dtype) + NORM


def shared_bytes(parameters: Sequence[Parameter], optimizer: str, wide_embeddings: bool) -> int:
    """A signed and an unsigned code book, as soon as one parameter or projected gradient has 8-bit states."""
    plain = [one for one in parameters if not is_projected(one)]
    projected = (low_rank_shape(one.shape, rank_of(optimizer)) for one in parameters if is_projected(one))
    if any(rows * columns >= bnb.SMALLEST_8BIT for rows, columns in projected):
        return len(bnb.tensors_of(KERNEL)) * bnb.CODE_BOOK_BYTES
    return bnb.shared_bytes(plain, KERNEL, wide_embeddings=False)


def managed_bytes(parameter: Parameter, optimizer: str, wide_embeddings: bool) -> int:
    """Nothing."""
    return 0


def step(tape: Tape, parameters: Sequence[Parameter], optimizer: str, implementation: str) -> None:
    """Parameter by parameter, those that are not projected first.

    The weight is copied before its place is taken, so that it is there twice for a moment; the gradient in its subspace
    stays as the gradient of the parameter, whose own goes.
    Source: galore_torch/adamw8bit.py, AdamW8bit.step.
    """
    rank, stays = rank_of(optimizer), None
    for parameter in one_by_one(tape, [one for one in parameters if is_projected(one)]):
        shape, dtype = parameter.shape, parameter.dtype
        projection = decompose(tape, parameter, rank, dtype)
        del projection  # it replaces the one that is among the states
        low = low_rank_shape(shape, rank)
        parameter.grad = tape.new("mm", low, dtype, False, category="gradients")
        stays = parameter.grad.storage
        saved = tape.new("clone", shape, dtype, False)
        weight = tape.new("clone", low, dtype, False)
        del saved  # it is the weight's own place from now on
        full = tape.new("mm", shape, dtype, False)
        scaled = tape.new("mul", shape, dtype, False)
        del full, scaled, weight
    if stays is not None:
        tape.unseen.handed_on.discard(stays.index)  # each copy of the last weight has one of its own


def describe(optimizer: str, itemsize: int) -> str:
    """What the states are."""
    rank = rank_of(optimizer)
    what = f"of each linear weight in a block two moments of rank {rank}, 1 B each, and its projection"
    return f"{WORD}: {what}; two moments of 1 B of all else, of 4 B below {bnb.SMALLEST_8BIT:,} elements"
