"""Megatron-FSDP: what a device holds of weights, gradients and states that are shared, and what it gathers.

A unit is a block. Read off megatron-core 0.16 (core/distributed/fsdp/mcore_fsdp_adapter.py, and Megatron-FSDP's
param_and_grad_buffer.py, megatron_fsdp.py); not traced.
"""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.replay.precision import Precision
from vramplan.replay.recorder import rounded
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import FP32, DType, Parameter
from vramplan.values.parallel import FSDP, FSDP_GRAD_OP, Sharded

KINDS = (FSDP, FSDP_GRAD_OP)  # optim_grads_params, optim_grads
BUFFERS = 2  # of a block that computes, and of the next one: suggested_communication_unit_size, fsdp_double_buffer


def of_weights(sharding: Sharded | None) -> int:
    """How many devices share the weights."""
    return sharding.shards if sharding is not None and sharding.kind == FSDP else 1


def states_of_shards(
    parameters: Sequence[Parameter], sharding: Sharded, moments: int, precision: Precision, gradient_dtype: DType
) -> list[StandingState]:
    """A part of everything, the weights whole under `fsdp-grad-op`, and the buffers of blocks.

    Under `fsdp` what is in no block is gathered before forward, and stays until backward is over. Frozen weights are
    gathered too, and have nothing else.
    """
    trained = [one for one in parameters if one.node is not None]
    own = -(-sum(one.elements * one.copies for one in trained) // sharding.shards)
    elements = sum(one.elements * one.copies for one in parameters)
    part, width = -(-elements // sharding.shards), precision.weights.itemsize
    largest = _largest_block(parameters)
    outside = sum(one.elements * one.copies for one in parameters if not one.path)
    gathered = 0
    if sharding.kind == FSDP:
        gathered = BUFFERS * rounded(largest * width) + rounded(outside * width)
    reduced = BUFFERS * rounded(_largest_block(trained) * gradient_dtype.itemsize)
    return [
        StandingState("weights", rounded((part if sharding.kind == FSDP else elements) * width), 0),
        StandingState("master", rounded(own * FP32.itemsize) if precision.master else 0, 0),
        StandingState("optimizer", moments * rounded(own * FP32.itemsize), 0),
        StandingState("gradients", rounded(own * gradient_dtype.itemsize), 0),
        StandingState("communication", gathered + reduced, 0),
    ]


def _largest_block(parameters: Sequence[Parameter]) -> int:
    """Elements of the block that has most of them."""
    blocks: dict[object, int] = {}
    for one in parameters:
        if one.path:
            blocks[one.path] = blocks.get(one.path, 0) + one.elements
    return max(blocks.values(), default=0)
