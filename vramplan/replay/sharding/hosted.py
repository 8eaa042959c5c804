"""What FSDP keeps on the host where shards are offloaded: weights, gradients and the optimizer's states.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard: _fsdp_api.py (CPUOffloadPolicy), _fsdp_param.py
(FSDPParam._init_sharded_param, all_gather_inputs), _fsdp_collectives.py (foreach_reduce).
"""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.replay.optimizers import MOMENTS, library_of, own_states
from vramplan.replay.recorder import Parameter, Tape
from vramplan.replay.tensors import FP32, DType
from vramplan.tuples import NamedTuple

EIGHT_BITS = 1 + FP32.itemsize / 256  # torchao/optim/subclass_8bit.py: a byte, and a scale for each 256 of them
STATES = {
    "adamw": 2.0,
    "adam": 2.0,
    "sgd": 0.0,
    "sgd-momentum": 1.0,
    "rmsprop": 1.0,
    "adamw-8bit": 2 * EIGHT_BITS / FP32.itemsize,
}
"""Copies of each weight in fp32 that an optimizer of PyTorch or torchao keeps beside it.

torchao's steps a shard by a function that is compiled for where the shard is (torchao/optim/adam.py).
"""
OF_BYTES = ("adamw-8bit",)  # whose states are as wide whatever the weights are


class HostStates(NamedTuple):
    """What one device has on the host, and what crosses the link in a step."""

    bytes: int  # of the tensors
    pinned_bytes: int  # of the pinned blocks among them, each a power of two
    pageable_bytes: int  # of those that are not pinned
    to_host_bytes: int  # in the last micro-step, and in the step
    to_device_bytes: int
    each_to_host_bytes: int  # in each micro-step before
    each_to_device_bytes: int
    drive_bytes: int = 0  # of files on NVMe
    to_drive_bytes: int = 0  # in a step
    from_drive_bytes: int = 0
    each_from_drive_bytes: int = 0  # in each micro-step before the last
    stops: str = ""  # why the engine gives up, where it does for certain
    doubts: str = ""  # why it may


class Shard(NamedTuple):
    """A tensor that lives on the host."""

    elements: int
    dtype: DType
    copies: int
    trained: bool
    moves: int  # to the device, in a micro-step
    has_gradient: bool = False  # a pinned one, trained or not: FSDP1 (_flat_param.py, init_flat_param_attributes)

    @property
    def bytes(self) -> int:
        """Of one copy."""
        return self.elements * self.dtype.itemsize


def host_states(shards: Iterable[Shard], optimizer: str, *, sums_each: bool, averages: bool = False) -> HostStates:
    """What the shards of one device are on the host.

    Weights and their gradients are pinned, each in a block of a power of two; the states of the optimizer are not.
    `sums_each` says that gradients of every micro-step go there, `averages` that an average of the weights is beside
    them, whose copies are not pinned.
    """
    size = pinned = pageable = down = up = 0
    for one in shards:
        tensors = 2 if one.trained or one.has_gradient else 1
        size += tensors * one.bytes * one.copies
        pinned += tensors * pinned_block(one.bytes) * one.copies
        up += one.moves * one.bytes * one.copies
        pageable += averages * one.bytes * one.copies
        if one.trained:
            down += one.bytes * one.copies
            pageable += state_bytes(one, optimizer) * one.copies
    return HostStates(
        bytes=size + pageable,
        pinned_bytes=pinned,
        pageable_bytes=pageable,
        to_host_bytes=down,
        to_device_bytes=up,
        each_to_host_bytes=down if sums_each else 0,
        each_to_device_bytes=up,
    )


def state_bytes(shard: Shard, optimizer: str) -> int:
    """Bytes of what an optimizer keeps beside a shard, without numbers; paged states are on the host, too.

    Tensors of other libraries are counted in the blocks of the device's allocator.
    Source: bitsandbytes 0.50.2, backends/cpu/ops.py: its kernels step what is on the host.
    """
    if optimizer in STATES:
        width = FP32.itemsize * shard.elements if optimizer in OF_BYTES else shard.bytes
        return int(STATES[optimizer] * width)
    if optimizer in MOMENTS:
        return MOMENTS[optimizer] * shard.bytes
    flat = Parameter(Tape(1), "flat_param", (shard.elements,), shard.dtype, 1, False)
    library = library_of(optimizer)
    if library is None:
        return own_states(flat, optimizer, "foreach")
    return library.states(flat, optimizer, "foreach", False) + library.managed_bytes(flat, optimizer, False)


def pinned_block(size: int) -> int:
    """Pinned blocks are powers of two (aten/src/ATen/core/CachingHostAllocator.h, allocate)."""
    return 1 << (size - 1).bit_length() if size else 0
