"""What `PYTORCH_ALLOC_CONF` changes of the caching allocator.

Source: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h of PyTorch 2.13.
"""

from __future__ import annotations

from vramplan.tuples import NamedTuple

MIN_BLOCK_BYTES = 512  # kMinBlockSize: what sizes are rounded up to
SMALL_BYTES = 2**20  # kSmallSize: the largest block of the pool of small ones
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer: a segment of that pool
LARGE_SEGMENT_BYTES = 20 * 2**20  # large_segment_size, kLargeBuffer before 2.11: a segment for blocks below 10 MiB
MIN_LARGE_BYTES = 10 * 2**20  # kMinLargeAlloc: from here on a segment is made for the block alone
ROUND_LARGE_BYTES = 2 * 2**20  # kRoundLarge: and rounded up to this
UNLIMITED = 2**63


class Settings(NamedTuple):
    """Settings under their own names, sizes in bytes; the defaults are PyTorch's.

    `divisions`: how many parts lie between two powers of two, for sizes from 1 MiB on, from 2 MiB on, ... 32 GiB on.
    `memory_fraction` is `per_process_memory_fraction`, or the argument of torch.cuda.set_per_process_memory_fraction:
    without it garbage_collection_threshold does nothing.
    """

    expandable_segments: bool = False
    max_split_size_bytes: int = UNLIMITED
    max_non_split_rounding_bytes: int = LARGE_SEGMENT_BYTES
    large_segment_bytes: int = LARGE_SEGMENT_BYTES
    garbage_collection_threshold: float = 0.0
    memory_fraction: float | None = None
    divisions: tuple[int, ...] = ()

    def rounded(self, size: int) -> int:
        """Bytes of the block that a request gets, before what is left of a larger one. Source: round_size."""
        if size <= MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if self.divisions:
            place = size.bit_length() - SMALL_BYTES.bit_length()
            parts = self.divisions[min(max(place, 0), len(self.divisions) - 1)]
            if parts > 1 and size > MIN_BLOCK_BYTES * parts:
                return next_division(size, parts)
        return -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES

    def segment_bytes(self, size: int) -> int:
        """Bytes that are asked of the device for a rounded size. Source: get_allocation_size."""
        if size <= SMALL_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_LARGE_BYTES:
            return self.large_segment_bytes
        return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


DEFAULT = Settings()


def next_division(size: int, parts: int) -> int:
    """The next of `parts` equal steps between two powers of two. Source: roundup_power2_next_division."""
    floor = 1 << (size.bit_length() - 1)
    if floor == size:
        return size
    step = floor >> (parts.bit_length() - 1)
    return -(-size // step) * step if step else floor << 1
