"""What PyTorch's caching allocator reserves for a training run: its pools, simulated over a few iterations.

Each stream has pools of its own, from which other streams get nothing: what FSDP gathers and what it sums lies beside
the pool of the computation, whose free blocks are of no use to it. With expandable segments a pool is one range of
addresses that grows at its end. The first iteration runs without optimizer states; they come between the blocks that
are free at its end, so later ones may find no block that is large enough, and grow the pool again.
Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator::malloc, get_free_block (best fit),
try_allocate_expandable_block and should_split; torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py,
FSDPCommContext.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

from vramplan.tape.record import Record
from vramplan.tape.tensors import ALLOCATOR_BLOCK_BYTES, round_up

PAGE_BYTES = 2 * 2**20  # kSmallBuffer: what expandable segments grow by, in the pool of small blocks
LARGE_PAGE_BYTES = 20 * 2**20  # kLargeBuffer: in that of large ones
SMALL_BYTES = 2**20  # kSmallSize: the largest block of the pool of small ones
ITERATIONS = 3  # the last ones no longer grow
GATHERING, REDUCING = "gather", "reduce"  # streams of FSDP
GATHERED = ("all_gather", "_foreach_copy_")  # what is allocated on the first of them
COMPUTE = "compute"  # the stream of everything that says no other


class Pool:
    """One range of addresses: blocks in use, and free ones between them."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.end = 0
        self.free: list[tuple[int, int]] = []  # (address, bytes) in the order of addresses
        self.by_size: list[tuple[int, int]] = []  # the same as (bytes, address), in their order
        self.used: dict[object, tuple[int, int]] = {}

    @property
    def reserved_bytes(self) -> int:
        """Whole pages."""
        return round_up(self.end, self.page_bytes)

    def allocate(self, key: object, size: int) -> None:
        """The smallest free block that is large enough, of equal ones the first; else the end of the range grows."""
        place = bisect_left(self.by_size, (size, -1))
        if place < len(self.by_size):
            found, address = self.by_size[place]
            self._take(bisect_left(self.free, (address, found)))
            if found > size:
                self._give(address + size, found - size)
        else:
            address = self.end
            if self.free and sum(self.free[-1]) == self.end:
                address, _ = self._take(len(self.free) - 1)
            self.end = address + size
        self.used[key] = (address, size)

    def release(self, key: object) -> None:
        """Free a block, and join it with free neighbours."""
        address, size = self.used.pop(key)
        place = bisect_left(self.free, (address, 0))
        if place < len(self.free) and self.free[place][0] == address + size:
            size += self._take(place)[1]
        if place and sum(self.free[place - 1]) == address:
            address, before = self._take(place - 1)
            size += before
        self._give(address, size)

    def _take(self, place: int) -> tuple[int, int]:
        address, size = self.free.pop(place)
        del self.by_size[bisect_left(self.by_size, (size, address))]
        return address, size

    def _give(self, address: int, size: int) -> None:
        insort(self.free, (address, size))
        insort(self.by_size, (size, address))


class Pools:
    """The pools of all streams."""

    def __init__(self) -> None:
        self.pools: dict[tuple[str, bool], Pool] = {}
        self.where: dict[object, Pool] = {}

    def allocate(self, key: object, size: int, stream: str = COMPUTE) -> None:
        """A block of a stream."""
        size = max(ALLOCATOR_BLOCK_BYTES, round_up(size, ALLOCATOR_BLOCK_BYTES))
        small = size <= SMALL_BYTES
        pool = self.pools.get((stream, small))
        if pool is None:
            pool = self.pools[stream, small] = Pool(PAGE_BYTES if small else LARGE_PAGE_BYTES)
        pool.allocate(key, size)
        self.where[key] = pool

    def release(self, key: object) -> None:
        """Free a block."""
        self.where.pop(key).release(key)

    @property
    def reserved_bytes(self) -> int:
        """Of all streams."""
        return sum(pool.reserved_bytes for pool in self.pools.values())


def reserved_bytes(record: Record) -> int:
    """What a run has reserved in the end; the record plays every block at the real micro-batch."""
    weights = record.weight_bytes
    pools = Pools()
    for number, size in enumerate(weights):
        pools.allocate(("weight", number), size)
    owned = 0  # bytes of the optimizer
    for number, state in enumerate(record.states):
        size = state.at(0) // state.copies
        if state.category in ("optimizer", "master"):
            owned += size * state.copies
        elif state.category != "weights":
            stream = REDUCING if state.category == "gradients" else COMPUTE
            for copy in range(state.copies):
                pools.allocate((state.category, number, copy), size, stream)
    names, renamed = _names(record)
    step = next(position for position, name in record.phases if name == "step")
    for iteration in range(ITERATIONS):
        for position, event in enumerate(record.events):
            if iteration == 0 and position == step:
                _make_states(pools, weights, owned)
            index = event if event >= 0 else ~event
            if event >= 0 and index not in names:
                pools.allocate(index, record.fixed[index], _stream_of(record, index))
            elif event < 0 and index not in renamed:
                pools.release(names.get(index, index))
        if iteration == 0 and step == len(record.events):  # a fused step allocates nothing
            _make_states(pools, weights, owned)
    return pools.reserved_bytes


def _make_states(pools: Pools, weights: tuple[int, ...], owned: int) -> None:
    """The first step makes the states of the optimizer: of each weight as many as there are in all."""
    total = sum(weights)
    each = owned // total if total else 0
    for number, size in enumerate(weights):
        for which in range(each):
            pools.allocate(("state", number, which), size)
    if owned > each * total:
        pools.allocate("states", owned - each * total)


def _stream_of(record: Record, index: int) -> str:
    if index not in record.elsewhere:
        return COMPUTE
    return GATHERING if record.operators[index] in GATHERED else REDUCING


def _names(record: Record) -> tuple[dict[int, int], set[int]]:
    """Storages that were counted under another component from some moment on: what they were born as, and the names
    that they had before."""
    names: dict[int, int] = {}
    renamed: set[int] = set()
    events = record.events
    for before, after in pairwise(events):
        if after in record.relabelled and after >= 0 > before:
            old = ~before
            names[after] = names.get(old, old)
            renamed.add(old)
    return names, renamed
