"""What is alive during a whole iteration: weights, optimizer states, buffers, inputs."""

from __future__ import annotations

from vramplan.replay.layouts import ALLOCATOR_BLOCK_BYTES
from vramplan.tuples import NamedTuple


class StandingState(NamedTuple):
    """Memory that is alive during the whole iteration: a component, bytes that are fixed, bytes per sample.

    Fixed bytes may be a sum over tensors that were rounded one by one; a size per sample is that of one tensor.
    """

    category: str
    fixed_bytes: int
    per_sample_bytes: int
    copies: int = 1  # equal ones

    def at(self, batch: int) -> int:
        """Bytes at a micro-batch, each copy in allocator blocks."""
        size = self.fixed_bytes + self.per_sample_bytes * batch
        return -(-size // ALLOCATOR_BLOCK_BYTES) * ALLOCATOR_BLOCK_BYTES * self.copies
