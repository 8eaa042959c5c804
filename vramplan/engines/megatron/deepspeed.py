"""Megatron-DeepSpeed, as BLOOM was trained: DeepSpeed's pipeline engine around Megatron's stages, and its ZeRO-1.

Each micro-batch in flight keeps the stage's input twice and its output. In fp16 the gradients of the partition are
flattened for the step and cast to fp32; in bf16 with fp32 gradients (BF16_Optimizer) the 16-bit ones stay beside them.
Source: DeepSpeed 0.6, deepspeed/runtime/pipe/engine.py (_exec_forward_pass, _exec_recv_activations, _exec_recv_grads),
deepspeed/runtime/zero/stage_1_and_2.py (reduce_gradients, copy_grads_in_partition, step),
deepspeed/runtime/bf16_optimizer.py (update_hp_grads).
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.models.modules import Recipe
from vramplan.replay.optimizers import MOMENTS
from vramplan.replay.pipeline.stages import Stage
from vramplan.replay.precision import Precision
from vramplan.replay.recorder import Tape, rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import FP32, Parameter, Tensor

BUCKET_ELEMENTS = 500_000_000  # reduce_bucket_size (deepspeed/runtime/zero/constants.py)
COMMUNICATION = "communication"  # component of the answer


def hidden_bytes(recipe: Recipe) -> int:
    """Bytes per sample of what stages hand to each other."""
    return recipe.sequence_length * recipe.shape.hidden_size * recipe.weight_dtype.itemsize


def copies_in_flight(stage: Stage | None) -> list[int]:
    """How often the engine holds the input, and the output, of a stage, beside what its forward pass has saved."""
    if stage is None:
        return []
    return [stage.in_flight for end in (stage.first, stage.last) if not end]


def pipeline_states(recipe: Recipe, stage: Stage | None) -> list[StandingState]:
    """What a stage receives into."""
    size = hidden_bytes(recipe)
    return [StandingState(COMMUNICATION, 0, size) for _ in copies_in_flight(stage)]


def states_of(
    parameters: Sequence[Parameter], optimizer: str, precision: Precision, shards: int, *, fp32_gradients: bool
) -> list[StandingState]:
    """Flat weights, the partition's fp32 copy and moments, and the gradients that stay."""
    elements = sum(one.elements * one.copies for one in parameters)
    part = -(-elements // shards)
    half = sum(one.stored_bytes * one.copies for one in parameters)
    return [
        StandingState("weights", rounded(elements * precision.weights.itemsize), 0),
        StandingState("master", rounded(part * FP32.itemsize), 0),
        StandingState("optimizer", MOMENTS[optimizer] * rounded(part * FP32.itemsize), 0),
        StandingState("gradients", half + (rounded(elements * FP32.itemsize) if fp32_gradients else 0), 0),
    ]


def add_to_fp32(tape: Tape) -> None:
    """BF16_Optimizer adds each gradient to its fp32 buffer, through a copy in fp32: one at a time."""
    copied: Tensor | None = None
    for one in tape.parameters:
        copied = None
        copied = tape.new("to", one.shape, FP32, False)
        not_joined(tape, copied)
    del copied


def not_joined(tape: Tape, tensor: Tensor) -> None:
    """Mark a tensor that gets a block of its own where it is larger than each freed one: those cannot be joined.

    Source: c10/cuda/CUDACachingAllocator.cpp, get_free_block and try_merge_blocks: segments are never merged.
    """
    storage = tensor.storage
    assert storage is not None
    tape.unseen.unjoined.add(storage.index)


def reduce_and_step(tape: Tape, precision: Precision, shards: int) -> None:
    """The gradients pass through a bucket into those of the partition, which are flattened and cast for the step.

    `copy_grads_in_partition` has a buffer of its own; the gradients have gone when the step begins, so that the
    partition's alone are beside it: the resident ones stand for them on a single data-parallel device.
    """
    elements = sum(one.elements * one.copies for one in tape.parameters)
    part = -(-elements // shards)
    bucket = tape.new("reduce", (BUCKET_ELEMENTS,), precision.weights, False, category=COMMUNICATION)
    del bucket
    flat = tape.new("flatten", (part,), precision.weights, False)
    wide = tape.new("to", (part,), FP32, False)
    not_joined(tape, flat)
    not_joined(tape, wide)
    del flat, wide
