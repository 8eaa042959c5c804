"""From allocated bytes to what the device shows, and the band around it.

Where the allocator is not simulated these are the contract's factors (docs/job-format.md, "Verdict"). Demand rounds up.
"""

from __future__ import annotations

from vramplan.planner.bands import MOST_FOR_LARGEST, PLAIN, RESERVED_ESTIMATED, Fitted, Margin
from vramplan.tuples import NamedTuple

# Reserved over allocated in published runs: +1.6 and +13 % (NVIDIA/Megatron-LM issues 965 and 5662), +4 to +17 %
# (KellerJordan/modded-nanogpt logs), +0.3 to +0.4 % at an out-of-memory (tatsu-lab/stanford_alpaca issues 189, 218).
RESERVED_PERCENT = 104
FITTED_FROM = (
    Fitted(
        "RESERVED_PERCENT",
        RESERVED_ESTIMATED,
        (
            *("NVIDIA/Megatron-LM issue 965", "NVIDIA/Megatron-LM issue 5662", "KellerJordan/modded-nanogpt logs"),
            *("alpaca-189-*", "alpaca-218-*"),
        ),
    ),
)

# Without a caching allocator what is reserved is what was asked for. Above it is the workspace of cuDNN's attention,
# which depends on the card and is made in the first step: "by default, cuDNN uses up to 256MiB" (llmc/cudnn_att.cpp).
STATIC_HIGH_BYTES = 256 << 20


# PyTorch has a handle of cuBLAS for each thread that multiplies, and each has its workspace for good: forward runs in
# the thread of the program, backward in that of the device (ATen/cuda/detail/DeviceThreadHandles.h, DeviceThreadHandle-
# Pool; aten/src/ATen/cuda/CublasHandlePool.cpp, setWorkspaceForHandle; torch/csrc/autograd/engine.cpp, thread_main).
MULTIPLYING_THREADS = 2


class Footprint(NamedTuple):
    """One peak on its way from the tensors to the device, in bytes."""

    allocated: int
    reserved: int
    device: int
    low: int
    high: int
    stranded: int = 0  # in blocks that cannot be used: of other streams, or too small
    returnable: int = 0  # of `stranded`: given back to the device where memory is short


def footprint(
    allocated_bytes: int,
    outside_bytes: int,
    margin: Margin = PLAIN,
    stranded_bytes: int = 0,
    simulated_bytes: int | None = None,
    returnable_bytes: int = 0,
    came_through: bool = False,
    room_bytes: int = 0,
) -> Footprint:
    """What the allocator reserves, what the device shows, and the band, for a peak of allocated bytes.

    `outside_bytes` are on the device and not in the allocator: the CUDA context and communicators.
    `stranded_bytes` are in the allocator beside the peak: what cannot be used, as it is another stream's or too small.
    `returnable_bytes` of them are given back where memory is short, so the lower end has none of them.
    `simulated_bytes` is what a simulation of the allocator says that it reserves, where there is one. `margin` is a
    share of that, else of what the allocator has to hold. `came_through`: the simulated run did, giving segments back
    to the device where it was short; so the blocks of other streams need no room of their own at the peak.
    `room_bytes` is what an estimate has for the largest tensor at its upper end.
    """
    held = allocated_bytes + stranded_bytes
    reserved = -(-held * RESERVED_PERCENT // 100)
    lower = held - returnable_bytes
    upper = held
    if simulated_bytes is not None:  # which knows what was given back, and when
        lower = upper = reserved = max(simulated_bytes, allocated_bytes if came_through else held - returnable_bytes)
        stranded_bytes = min(stranded_bytes, reserved - allocated_bytes)
    return Footprint(
        allocated=allocated_bytes,
        reserved=reserved,
        device=reserved + outside_bytes,
        low=low_of(lower, outside_bytes, margin),
        high=_upper(upper, margin.above, 0 if simulated_bytes is not None else room_bytes) + outside_bytes,
        stranded=stranded_bytes,
        returnable=min(returnable_bytes, stranded_bytes),
    )


def low_of(held_bytes: int, outside_bytes: int, margin: Margin) -> int:
    """The lower end of the band of what the allocator holds, with what is outside of it."""
    return -(-held_bytes * (100 - margin.below) // 100) + -(-outside_bytes * margin.outside // 100)


def _upper(held_bytes: int, above: int, room_bytes: int) -> int:
    """The upper end of what the allocator reserves, with room for large tensors."""
    plain, most = (-(-held_bytes * (100 + percent) // 100) for percent in (above, MOST_FOR_LARGEST))
    return max(plain, min(most, held_bytes + room_bytes))


def certain_limit(usable_bytes: int, above: int, room_bytes: int) -> int:
    """The most that the allocator may have to hold, so that the upper end of the estimate is within what is usable."""
    plain, most = (usable_bytes * 100 // (100 + percent) for percent in (above, MOST_FOR_LARGEST))
    return max(0, min(plain, max(most, usable_bytes - room_bytes)))


def static_footprint(allocated_bytes: int, outside_bytes: int) -> Footprint:
    """The same where everything is allocated once, and no allocator is in between."""
    return Footprint(
        allocated=allocated_bytes,
        reserved=allocated_bytes,
        device=allocated_bytes + outside_bytes,
        low=allocated_bytes + -(-outside_bytes // 2),
        high=allocated_bytes + outside_bytes + STATIC_HIGH_BYTES,
    )


def allocated_limit(device_bytes: int, outside_bytes: int) -> int:
    """The largest allocated bytes whose device figure is within `device_bytes`."""
    room = device_bytes - outside_bytes
    limit = room * 100 // RESERVED_PERCENT
    while limit > 0 and -(-limit * RESERVED_PERCENT // 100) > room:
        limit -= 1
    return max(limit, 0)
