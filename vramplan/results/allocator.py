"""What a simulated caching allocator says of a run, beside the figures of the answer."""

from __future__ import annotations

from vramplan.tuples import NamedTuple


class OutOfMemory(NamedTuple):
    """Where a simulated run ends: the device has no segment for a request, although all free ones were given back."""

    iteration: int  # from 1
    phase: str
    operator: str
    wanted_bytes: int
    allocated_bytes: int  # in use then
    reserved_bytes: int  # with free blocks that cannot go back, as others of their segments are in use
    largest_free_bytes: int  # of those blocks
    by_fragmentation: bool  # what was in use and what was asked for would have had room
    expandable_segments_suffice: bool | None  # None: they are in use


class Allocator(NamedTuple):
    """What a simulated caching allocator does in a few iterations."""

    settings: str  # as PYTORCH_ALLOC_CONF has them; "simulate": PyTorch's own
    reserved_bytes: int  # at most, over all iterations
    allocated_bytes: int  # the same of blocks in use, with what is not split off them
    first_reserved_bytes: int  # the same of the first iteration, whose step makes the optimizer's states
    first_allocated_bytes: int
    held_bytes: int  # at the end: free, and in segments of which others are in use
    largest_free_bytes: int  # at the end
    retries: int  # how often all free segments went back to the device, which waits for the GPU
    out_of_memory: OutOfMemory | None
