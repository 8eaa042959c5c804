"""Expandable segments: one range of addresses per pool, longer than the memory, behind which pages are mapped.

Source: c10/cuda/CUDACachingAllocator.cpp, ExpandableSegment, find_expandable_block, map_block,
try_allocate_expandable_block and unmap_block.
"""

from __future__ import annotations

from bisect import insort

from vramplan.replay.caching.blocks import Block, Pool

ADDRESSES_BYTES = 2**50  # of a pool's one segment; a real one has 9/8 of the device's memory, and then a second begins


def grow(pool: Pool, size: int, page_bytes: int, room_bytes: int) -> tuple[Block | None, int]:
    """A block of at least `size` bytes by mapping pages, and the bytes that were mapped; no block if there is no room.

    The block is in no list. It begins in the free block before the first unmapped range that is long enough.
    """
    block = _candidate(pool, size)
    if block is None:
        block = Block(pool, 0, ADDRESSES_BYTES, expandable=True)
        block.mapped, block.free = False, True
        _insert(pool, block)
    mapped = 0
    while not block.mapped or block.size < size:
        target = block if not block.mapped else block.next
        assert target is not None
        assert not target.mapped
        missing = size if target is block else size - block.size
        pages = -(-min(missing, target.size) // page_bytes) * page_bytes
        if mapped + pages > room_bytes:
            return None, mapped
        block = _map(pool, target, pages)
        mapped += pages
    pool.take(block)
    return block, mapped


def unmap(block: Block, page_bytes: int) -> int:
    """Give back the whole pages of a free block; how many bytes that are."""
    pool = block.pool
    first = -(-block.address // page_bytes) * page_bytes
    last = (block.address + block.size) // page_bytes * page_bytes
    if first >= last:
        return 0
    pool.take(block)
    address, size = block.address, block.size
    if first > address:
        before = Block(pool, address, first - address, expandable=True)
        before.put_between(block.before, block)
        pool.give(before)
    if address + size > last:
        after = Block(pool, last, address + size - last, expandable=True)
        after.put_between(block, block.next)
        pool.give(after)
    block.address, block.size = first, last - first
    block.mapped, block.free = False, True
    for other in (block.before, block.next):
        if other is not None and not other.mapped:
            pool.unmapped.remove(other)
            _join(block, other)
    _insert(pool, block)
    return last - first


def _candidate(pool: Pool, size: int) -> Block | None:
    for found in pool.unmapped:
        first = found
        if found.before is not None and found.before.free:
            first = found.before
        available, block = 0, first
        while available < size and block is not None and block.free:
            available += block.size
            block = block.next  # type: ignore[assignment]
        if available >= size:
            return first
    return None


def _map(pool: Pool, block: Block, pages_bytes: int) -> Block:
    """Put memory behind the first part of an unmapped range, which joins its free neighbours."""
    pool.unmapped.remove(block)
    if pages_bytes < block.size:
        rest = Block(pool, block.address + pages_bytes, block.size - pages_bytes, expandable=True)
        rest.mapped, rest.free = False, True
        rest.put_between(block, block.next)
        _insert(pool, rest)
        block.size = pages_bytes
    block.mapped = True
    for other in (block.before, block.next):
        if other is not None and other.free and other.mapped:
            pool.take(other)
            _join(block, other)
    pool.give(block)
    return block


def _join(block: Block, other: Block) -> None:
    block.size += other.size
    if other is block.before:
        block.address = other.address
        block.put_between(other.before, block.next)
    else:
        block.put_between(block.before, other.next)
    other.before = other.next = None  # two that are no more would hold each other


def _insert(pool: Pool, block: Block) -> None:
    insort(pool.unmapped, block, key=lambda one: one.address)
