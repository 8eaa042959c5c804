"""Blocks of memory, in use and free, and the free ones of a pool in the order in which they are looked for.

Source: c10/cuda/CUDACachingAllocator.cpp, Block, BlockPool and BlockComparatorSize.
"""

from __future__ import annotations

from bisect import bisect_left, insort


class Block:
    """A range of addresses within a segment, and its neighbours there."""

    __slots__ = ("address", "before", "born", "expandable", "free", "mapped", "next", "pool", "size")

    def __init__(self, pool: Pool, address: int, size: int, *, expandable: bool = False) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.before: Block | None = None
        self.next: Block | None = None
        self.free = False  # in the list of its pool, or unmapped
        self.mapped = True  # memory lies behind the addresses
        self.expandable = expandable
        self.born = 0  # how often its pool had been searched when it became free

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.next is None

    def put_between(self, before: Block | None, after: Block | None) -> None:
        """Take a place in the row of neighbours."""
        self.before, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.before = self


ADDRESS_BITS = 64
ADDRESS = (1 << ADDRESS_BITS) - 1


class Pool:
    """The small or the large blocks of one stream; other streams get nothing of them.

    `sizes` has the free blocks in order, each as one number: its bytes above its address, which compare faster than a
    pair.
    """

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.sizes: list[int] = []
        self.at: dict[int, Block] = {}  # free blocks by address
        self.unmapped: list[Block] = []  # ranges without memory, of expandable segments, by address
        self.searches = 0

    def give(self, block: Block) -> None:
        """A block is free from now on."""
        block.free = True
        block.born = self.searches
        insort(self.sizes, block.size << ADDRESS_BITS | block.address)
        self.at[block.address] = block

    def take(self, block: Block) -> None:
        """A free block is in use from now on, or about to change."""
        block.free = False
        del self.sizes[bisect_left(self.sizes, block.size << ADDRESS_BITS | block.address)]
        del self.at[block.address]

    def best_fit(self, size: int) -> int:
        """The place in `sizes` of the smallest free block that is large enough; their number if there is none."""
        return bisect_left(self.sizes, size << ADDRESS_BITS)

    def at_place(self, place: int) -> Block:
        """The free block at a place of `sizes`."""
        return self.at[self.sizes[place] & ADDRESS]

    @property
    def free_bytes(self) -> int:
        """Bytes of all free blocks."""
        return sum(key >> ADDRESS_BITS for key in self.sizes)

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest free block; 0 if there is none."""
        return self.sizes[-1] >> ADDRESS_BITS if self.sizes else 0
