"""The caching allocator of one device, as PyTorch 2.13 has it.

A request is rounded to 512 bytes and gets the best fitting free block of its stream's pool, split where the rest is
worth keeping. Else the device is asked for a segment: of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below 10,
for larger ones of their own size rounded to 2 MiB. A free block joins free neighbours of its segment, and only a
segment that is free as a whole can go back, which it does when the device has no more.
Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator: malloc, get_free_block, should_split,
alloc_found_block, free_block, try_merge_blocks, garbage_collect_cached_blocks, release_available_cached_blocks and
release_cached_blocks. Blocks used on several streams (record_stream) are free at once here, and not when a later call
finds their events done (but see ahead.py); captured graphs have pools of their own, which are not simulated.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from vramplan.replay.caching.blocks import ADDRESS, ADDRESS_BITS, Block, Pool
from vramplan.replay.caching.expandable import grow, unmap
from vramplan.values.allocator import DEFAULT, MIN_BLOCK_BYTES, SMALL_BYTES, UNLIMITED, Settings

MAIN_STREAM = ""

_blank = object.__new__


class NoSegment(Exception):
    """No segment can be had for a request, although all that is free was given back.

    `wanted_bytes` were asked of the device; `allocated_bytes` are in use, and `reserved_bytes` with the free blocks
    that cannot go back because others of their segments are in use; `largest_free_bytes` is the largest of these.
    """

    def __init__(self, wanted_bytes: int, allocated_bytes: int, reserved_bytes: int, largest_free_bytes: int) -> None:
        super().__init__(f"tried to allocate {wanted_bytes} bytes")
        self.wanted_bytes = wanted_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.largest_free_bytes = largest_free_bytes


class Exceeded(Exception):
    """A request would reserve more than a run may reserve to be of use. The same request may be made again."""


class CachingAllocator:
    """`limit_bytes` is what the device can give; None for as much as is asked for.

    A request that would reserve more than `most_bytes` raises Exceeded, and gets nothing.
    """

    def __init__(self, settings: Settings = DEFAULT, limit_bytes: int | None = None) -> None:
        self.settings = settings
        self.most_bytes = UNLIMITED
        fraction = settings.memory_fraction
        self.limit_bytes = UNLIMITED if limit_bytes is None else limit_bytes
        if fraction is not None and limit_bytes is not None:
            self.limit_bytes = int(fraction * limit_bytes)
        self.takes_smallest = not settings.expandable_segments and settings.max_split_size_bytes == UNLIMITED
        # should_split: what must be left of a block, and the requests that split one; of large ones, of small ones
        whole = settings.expandable_segments
        self.least_rest = (MIN_BLOCK_BYTES if whole else SMALL_BYTES + 1, MIN_BLOCK_BYTES)
        self.most_split = (UNLIMITED if whole else settings.max_split_size_bytes, UNLIMITED)
        self.pools: dict[tuple[str, bool], Pool] = {}
        self.segments: list[Block] = []  # the first block of each, which stays the first as it is split and joined
        self.end = 0  # of the addresses that were handed out: each segment has its own ones
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.retries = 0  # how often all free segments went back because the device had no more
        self.asked = 0  # the last birth of `play` for which there was no free block

    # --------------------------------------------------------------------------------------------- both directions
    def malloc(self, size: int, stream: str = MAIN_STREAM) -> Block:
        """A block of at least `size` bytes. Raises NoSegment."""
        return self.serve(self.settings.rounded(size), stream)

    def serve(self, size: int, stream: str = MAIN_STREAM) -> Block:
        """The same of a size that is rounded already. Raises NoSegment, and Exceeded."""
        small = size <= SMALL_BYTES
        pool = self._pool(stream, small)
        pool.searches += 1
        if self.takes_smallest:
            sizes = pool.sizes
            place = bisect_left(sizes, size << ADDRESS_BITS)
            if place == len(sizes):
                block = self._new_block(pool, size)
            else:
                block = pool.at.pop(sizes.pop(place) & ADDRESS)
                block.free = False
        else:
            block = self._best_fit(pool, size) or self._new_block(pool, size)
        rest = block.size - size
        if not rest:
            allocated = self.allocated_bytes + size
        elif rest >= self.least_rest[small] and size < self.most_split[small]:
            self._split(pool, block, size, rest)
            allocated = self.allocated_bytes + size
        else:
            allocated = self.allocated_bytes + block.size
        self.allocated_bytes = allocated
        if allocated > self.peak_allocated_bytes:
            self.peak_allocated_bytes = allocated
        return block

    def _split(self, pool: Pool, block: Block, size: int, rest: int) -> None:
        """The block keeps its first `size` bytes; the others are free. Written out: every other request comes here."""
        address = block.address + size
        remaining: Block = _blank(Block)
        remaining.pool, remaining.address, remaining.size = pool, address, rest
        remaining.free = remaining.mapped = True
        remaining.expandable = block.expandable
        remaining.born = pool.searches
        block.size = size
        after = block.next
        remaining.before, remaining.next, block.next = block, after, remaining
        if after is not None:
            after.before = remaining
        insort(pool.sizes, rest << ADDRESS_BITS | address)
        pool.at[address] = remaining

    def free(self, block: Block) -> None:
        """A block is no longer used: it joins free neighbours, and stays reserved. Nobody may use it afterwards."""
        pool, size = block.pool, block.size
        self.allocated_bytes -= size
        sizes = pool.sizes
        before, after = block.before, block.next
        if after is not None and after.free and after.mapped:
            other, address = after.size, after.address
            del sizes[bisect_left(sizes, other << ADDRESS_BITS | address)], pool.at[address]
            after.free = False
            size += other
            after = after.next
        if before is not None and before.free and before.mapped:  # it becomes the whole
            other = before.size
            del sizes[bisect_left(sizes, other << ADDRESS_BITS | before.address)]
            size += other
            block.next = None  # it and what it has joined are no more, and would hold each other
            block = before
        block.next = after
        if after is not None:
            after.before = block
        block.size = size
        block.free = True
        block.born = pool.searches
        address = block.address
        insort(sizes, size << ADDRESS_BITS | address)
        pool.at[address] = block

    def play(
        self, course: Iterator[int], sizes: Sequence[int], streams: Mapping[int, str], alive: dict[int, Block]
    ) -> None:
        """Births and deaths in their order: `serve` of each birth's size on its stream, and `free` of what it gave.

        They are written out here, as nearly all requests of a run come this way, where the smallest free block that is
        large enough is the one that is taken, and nobody asks how long it was free. `asked` is the birth that raises
        NoSegment or Exceeded.
        """
        if not self.takes_smallest or self.collects:
            for event in course:
                if event < 0:
                    self.free(alive.pop(~event))
                else:
                    self.asked = event
                    alive[event] = self.serve(sizes[event], streams.get(event, MAIN_STREAM))
            return
        small, large = self._pool(MAIN_STREAM, True), self._pool(MAIN_STREAM, False)
        least_large, least_small = self.least_rest
        allocated, peak = self.allocated_bytes, self.peak_allocated_bytes
        pop = alive.pop
        block: Block | None
        try:
            for event in course:
                if event < 0:
                    block = pop(~event)
                    size = block.size
                    allocated -= size
                    pool = block.pool
                    free, at = pool.sizes, pool.at
                    before, after = block.before, block.next
                    if after is not None and after.free:
                        other, address = after.size, after.address
                        del free[bisect_left(free, other << ADDRESS_BITS | address)], at[address]
                        after.free = False
                        size += other
                        after = after.next
                    if before is not None and before.free:
                        other = before.size
                        del free[bisect_left(free, other << ADDRESS_BITS | before.address)]
                        size += other
                        block.next = None
                        block = before
                    block.next = after
                    if after is not None:
                        after.before = block
                    block.size = size
                    block.free = True
                    address = block.address
                    insort(free, size << ADDRESS_BITS | address)
                    at[address] = block
                    continue
                size = sizes[event]
                is_small = size <= SMALL_BYTES
                pool = small if is_small else large
                if event in streams:
                    pool = self._pool(streams[event], is_small)
                free = pool.sizes
                place = bisect_left(free, size << ADDRESS_BITS)
                if place == len(free):
                    self.asked, self.allocated_bytes = event, allocated
                    block = self._new_block(pool, size)
                else:
                    block = pool.at.pop(free.pop(place) & ADDRESS)
                    block.free = False
                rest = block.size - size
                if rest and rest >= (least_small if is_small else least_large):
                    address = block.address + size
                    remaining: Block = _blank(Block)
                    remaining.pool, remaining.address, remaining.size = pool, address, rest
                    remaining.free = remaining.mapped = True
                    remaining.expandable = False
                    remaining.born = 0
                    block.size = size
                    after = block.next
                    remaining.before, remaining.next, block.next = block, after, remaining
                    if after is not None:
                        after.before = remaining
                    insort(free, rest << ADDRESS_BITS | address)
                    pool.at[address] = remaining
                    rest = 0
                allocated += size + rest
                if allocated > peak:
                    peak = allocated
                alive[event] = block
        finally:
            self.allocated_bytes, self.peak_allocated_bytes = allocated, peak

    def empty_cache(self) -> None:
        """Give back every segment that is free as a whole: torch.cuda.empty_cache()."""
        for pool in sorted(self.pools.values(), key=lambda pool: pool.small):  # large ones first
            for block in [pool.at_place(place) for place in range(len(pool.sizes))]:
                if block.expandable:
                    self.reserved_bytes -= unmap(block, self._page_bytes(pool))
                elif block.is_whole:
                    self._release(block)

    @property
    def largest_free_bytes(self) -> int:
        """Bytes of the largest free block."""
        return max((pool.largest_free_bytes for pool in self.pools.values()), default=0)

    @property
    def held_bytes(self) -> int:
        """Reserved bytes that no tensor uses and that cannot go back, as others of their segments are in use."""
        held = 0
        for pool in self.pools.values():
            for block in pool.at.values():
                if not block.expandable and not block.is_whole:
                    held += block.size
        return held

    def close(self) -> None:
        """Nobody asks it any more. Neighbours hold each other, so their memory would wait for a garbage collection."""
        for pool in self.pools.values():
            for first in pool.unmapped[-1:]:  # the end of its expandable segment
                while first.before is not None:
                    first = first.before
                self.segments.append(first)
            pool.at.clear()
            pool.unmapped.clear()
        while self.segments:
            block: Block | None = self.segments.pop()
            while block is not None:
                after, block.next, block.before = block.next, None, None
                block = after

    # ------------------------------------------------------------------------------------------------- its parts
    def _pool(self, stream: str, small: bool) -> Pool:
        pool = self.pools.get((stream, small))
        if pool is None:
            pool = self.pools[stream, small] = Pool(small=small)
        return pool

    @property
    def collects(self) -> bool:
        """Whether it gives back what was not used for long."""
        return bool(self.settings.garbage_collection_threshold) and self.settings.memory_fraction is not None

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """The smallest free block that is large enough, of equal ones the first."""
        sizes = pool.sizes
        place = pool.best_fit(size)
        if place == len(sizes):
            return None
        block = pool.at_place(place)
        if block.expandable:  # the one at the end of the mapped range counts with all that it can grow to
            while place + 1 < len(sizes):
                other = pool.at_place(place + 1)
                if _expandable_bytes(other) >= _expandable_bytes(block):
                    break
                place, block = place + 1, other
        limit = self.settings.max_split_size_bytes
        if limit != UNLIMITED:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        del sizes[place], pool.at[block.address]
        block.free = False
        return block

    def _new_block(self, pool: Pool, size: int) -> Block:
        settings = self.settings
        if self.collects:
            self._collect()
        block = self._segment(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._segment(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._segment(pool, size)
        if block is None:
            wanted = settings.segment_bytes(size)
            raise NoSegment(wanted, self.allocated_bytes, self.reserved_bytes, pool.largest_free_bytes)
        return block

    def _segment(self, pool: Pool, size: int) -> Block | None:
        """A segment of the device, or the same from an expandable one; None if the device has no more."""
        settings = self.settings
        if settings.expandable_segments:
            room = self.limit_bytes - self.reserved_bytes
            block, mapped = grow(pool, size, self._page_bytes(pool), room)
            if block is not None and self.reserved_bytes + mapped > self.most_bytes:
                self.reserved_bytes += mapped  # the pages stay, for the same request
                self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
                pool.give(block)
                raise Exceeded
        else:
            mapped = settings.segment_bytes(size)
            if self.reserved_bytes + mapped > self.limit_bytes:
                return None
            if self.reserved_bytes + mapped > self.most_bytes:
                raise Exceeded
            block = Block(pool, self.end, mapped)
            self.segments.append(block)
            self.end += mapped
        self.reserved_bytes += mapped
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return block

    def _page_bytes(self, pool: Pool) -> int:
        return self.settings.segment_bytes(1) if pool.small else self.settings.large_segment_bytes

    def _release(self, block: Block) -> None:
        block.pool.take(block)
        self.reserved_bytes -= block.size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Give back one free block that is large enough, or several; only blocks above max_split_size."""
        limit = self.settings.max_split_size_bytes
        if limit == UNLIMITED or self.settings.expandable_segments:  # whose pages go back with all others
            return False
        wanted = max(size, limit)
        place = pool.best_fit(wanted)
        if place < len(pool.sizes):
            self._release(pool.at_place(place))
            return True
        released = 0
        while released < wanted and pool.sizes and pool.largest_free_bytes >= limit:
            released += pool.largest_free_bytes
            self._release(pool.at_place(-1))
        return released >= wanted

    def _collect(self) -> None:
        """Give back large free segments that were not used for long, once more than the threshold is reserved."""
        threshold = int(self.settings.garbage_collection_threshold * self.limit_bytes)
        target = self.reserved_bytes - threshold
        if target <= 0:
            return
        whole = [
            block
            for (_, small), pool in self.pools.items()
            for block in pool.at.values()
            if not small and block.is_whole and not block.expandable
        ]
        reclaimed = 0
        while whole and reclaimed < target:
            ages = [block.pool.searches - block.born for block in whole]
            mean = sum(ages) / len(ages)
            old = [block for block, age in zip(whole, ages, strict=True) if age >= mean]
            for block in old:
                reclaimed += block.size
                self._release(block)
            whole = [block for block in whole if block.free]


def _expandable_bytes(block: Block) -> int:
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)
