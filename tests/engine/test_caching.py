"""Closed form: the caching allocator on sequences made by hand, by the rules of CUDACachingAllocator.cpp (2.13)."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from vramplan.planner.reserving import records_of
from vramplan.replay.caching.allocator import CachingAllocator, Exceeded, NoSegment
from vramplan.replay.caching.blocks import Block
from vramplan.replay.caching.run import SimulatedRun, reserve
from vramplan.replay.setup import Setup
from vramplan.values.allocator import Settings

KIB, MIB = 2**10, 2**20
EXPANDABLE = Settings(expandable_segments=True)


def allocator(limit_mib: int | None = None, settings: Settings = Settings()) -> CachingAllocator:  # noqa: B008
    return CachingAllocator(settings, None if limit_mib is None else limit_mib * MIB)


def mallocs(one: CachingAllocator, *sizes_mib: float) -> list[Block]:
    return [one.malloc(int(size * MIB)) for size in sizes_mib]


def free(one: CachingAllocator, blocks: Iterable[Block]) -> None:
    for block in blocks:
        one.free(block)


@pytest.mark.parametrize(("size", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)])
def test_requests_are_rounded_to_512_bytes(size: int, rounded: int) -> None:
    assert Settings().rounded(size) == rounded


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (1601 * 4 * MIB, 6404 * MIB),
    ],
)
def test_segments_have_2_or_20_mib_or_the_size_of_their_block(size: int, segment: int) -> None:
    assert Settings().segment_bytes(size) == segment
    one = allocator()
    one.malloc(size)
    assert one.reserved_bytes == segment


def test_the_division_of_powers_of_two_that_pytorch_documents() -> None:
    quarters = Settings(divisions=(4,) * 16)
    assert quarters.rounded(1200 * KIB) == 1280 * KIB
    assert quarters.rounded(1024 * KIB) == 1024 * KIB
    assert quarters.rounded(1500) == 1536  # not above 4 x 512: as without
    only_large = Settings(divisions=(1,) * 8 + (2,) * 8)
    assert only_large.rounded(200 * MIB + 1) == 200 * MIB + 512
    assert only_large.rounded(300 * MIB) == 384 * MIB


def test_small_blocks_share_a_segment() -> None:
    one = allocator()
    blocks = mallocs(one, 0.5, 0.5, 0.5, 0.5)
    assert one.reserved_bytes == 2 * MIB
    blocks += mallocs(one, 0.25)
    assert one.reserved_bytes == 4 * MIB
    free(one, blocks)
    assert one.reserved_bytes == 4 * MIB
    one.empty_cache()
    assert one.reserved_bytes == 0


def test_what_is_left_of_a_large_block_stays_with_it_up_to_a_mebibyte() -> None:
    one = allocator()
    first, second = mallocs(one, 9.75, 9.75)
    assert one.reserved_bytes == 20 * MIB
    assert first.size == 9.75 * MIB
    assert second.size == 10.25 * MIB  # half a mebibyte is not split off, and counts as allocated
    assert one.allocated_bytes == 20 * MIB
    third, fourth = mallocs(one, 9.25, 9.25)
    assert (third.size, fourth.size) == (9.25 * MIB, 9.25 * MIB)  # 1.5 MiB are
    assert one.largest_free_bytes == 1.5 * MIB


def test_the_smallest_free_block_that_is_large_enough() -> None:
    one = allocator()
    blocks = mallocs(one, 40, 12, 24)
    free(one, blocks)
    assert one.reserved_bytes == 76 * MIB
    assert mallocs(one, 11.5)[0].address == blocks[1].address
    assert mallocs(one, 22)[0].address == blocks[2].address
    mallocs(one, 30)
    assert one.reserved_bytes == 76 * MIB
    assert one.largest_free_bytes == 10 * MIB


def test_free_neighbours_of_a_segment_become_one_block() -> None:
    one = allocator()
    whole = mallocs(one, 60)
    free(one, whole)
    blocks = mallocs(one, 20, 20, 20)
    assert one.reserved_bytes == 60 * MIB
    free(one, (blocks[0], blocks[2], blocks[1]))
    assert one.largest_free_bytes == 60 * MIB


def test_segments_do_not_become_one() -> None:
    one = allocator()
    free(one, mallocs(one, 20, 20, 20))
    mallocs(one, 60)
    assert one.reserved_bytes == 120 * MIB


def test_at_the_limit_free_segments_go_back() -> None:
    one = allocator(100)
    kept, other = mallocs(one, 40, 50)
    one.free(other)
    mallocs(one, 60)
    assert (one.reserved_bytes, one.retries) == (100 * MIB, 1)
    assert kept.size == 40 * MIB


def test_a_run_dies_of_fragmentation_although_its_tensors_would_fit() -> None:
    def run(one: CachingAllocator) -> None:
        free(one, mallocs(one, 80))
        blocks = mallocs(one, 20, 20, 20, 20)
        free(one, blocks[::2])
        mallocs(one, 40)

    one = allocator(100)
    with pytest.raises(NoSegment) as error:
        run(one)
    found = error.value
    assert (found.wanted_bytes, found.allocated_bytes) == (40 * MIB, 40 * MIB)
    assert (found.reserved_bytes, found.largest_free_bytes) == (80 * MIB, 20 * MIB)
    assert one.held_bytes == 40 * MIB
    expandable = allocator(100, EXPANDABLE)
    run(expandable)  # the free pages are unmapped, and others mapped at the end
    assert expandable.reserved_bytes <= 100 * MIB


def test_streams_have_pools_of_their_own() -> None:
    one = allocator()
    one.free(one.malloc(30 * MIB))
    one.malloc(30 * MIB, "other")
    assert one.reserved_bytes == 60 * MIB


def test_an_expandable_segment_grows_at_its_end() -> None:
    one = allocator(settings=EXPANDABLE)
    first, second = mallocs(one, 30, 30)
    assert one.reserved_bytes == 60 * MIB
    one.free(second)
    mallocs(one, 50)  # 30 free MiB and one page of 20
    assert one.reserved_bytes == 80 * MIB
    one.free(first)
    mallocs(one, 31)  # the hole of 30 is too small
    assert one.reserved_bytes == 120 * MIB


def test_expandable_blocks_are_split_down_to_512_bytes() -> None:
    one = allocator(settings=EXPANDABLE)
    assert [block.size for block in mallocs(one, 9.75, 9.75)] == [9.75 * MIB, 9.75 * MIB]
    assert one.reserved_bytes == 20 * MIB


def test_large_free_blocks_are_not_split_above_max_split_size() -> None:
    one = allocator(settings=Settings(max_split_size_bytes=100 * MIB))
    free(one, mallocs(one, 200))
    mallocs(one, 40)
    assert one.reserved_bytes == 240 * MIB
    mallocs(one, 170)  # more than 20 MiB would be wasted
    assert one.reserved_bytes == 410 * MIB
    block = mallocs(one, 190)[0]
    assert (one.reserved_bytes, block.size) == (410 * MIB, 200 * MIB)


def test_above_max_split_size_only_as_much_goes_back_as_is_needed() -> None:
    limited = Settings(max_split_size_bytes=100 * MIB)
    one = allocator(500, limited)
    free(one, mallocs(one, 110, 120, 130, 90))
    mallocs(one, 150)
    # 130 and 120 went back; those of 110, and of 90, which is too small for that, stayed
    assert (one.reserved_bytes, one.retries) == (350 * MIB, 0)


def test_the_threshold_of_garbage_collection_needs_a_fraction() -> None:
    def run(settings: Settings) -> int:
        one = allocator(1000, settings)
        free(one, mallocs(one, 300, 200))
        mallocs(one, 300)
        free(one, mallocs(one, 400))
        return one.reserved_bytes // MIB

    assert run(Settings(garbage_collection_threshold=0.4)) == 900
    assert run(Settings(garbage_collection_threshold=0.4, memory_fraction=0.95)) == 700  # the 200 were not used again


def test_a_fraction_of_the_device_is_a_limit() -> None:
    one = allocator(100, Settings(memory_fraction=0.5))
    mallocs(one, 40)
    with pytest.raises(NoSegment):
        mallocs(one, 20)


SIZES = st.one_of(st.integers(1, MIB), st.integers(MIB + 1, 10 * MIB - 1), st.integers(10 * MIB, 200 * MIB))
SEQUENCES = st.lists(st.tuples(SIZES, st.sampled_from(("", "other")), st.integers(0, 3)), max_size=60)


@settings(max_examples=90, deadline=None)
@given(sequence=SEQUENCES, expandable=st.booleans(), limited=st.booleans(), split=st.sampled_from((None, 50, 120)))
def test_whatever_is_asked_for(
    sequence: list[tuple[int, str, int]], expandable: bool, limited: bool, split: int | None
) -> None:
    conf = Settings(expandable_segments=expandable)
    if split is not None:
        conf = conf._replace(max_split_size_bytes=split * MIB)
    one = allocator(600 if limited else None, conf)
    living: list[tuple[Block, int]] = []
    for size, stream, deaths in sequence:
        try:
            block = one.malloc(size, stream)
        except NoSegment:
            assert limited
            break
        assert block.size >= size
        living.append((block, size))
        for _ in range(deaths):
            if living:
                one.free(living.pop(len(living) // 2)[0])
        assert one.allocated_bytes == sum(block.size for block, _ in living)
        assert one.allocated_bytes <= one.reserved_bytes
        assert one.reserved_bytes == one.allocated_bytes + sum(pool.free_bytes for pool in one.pools.values())
        for pool in one.pools.values():
            mine = sorted((block.address, block.size) for block, _ in living if block.pool is pool)
            assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(mine))
        if limited:
            assert one.reserved_bytes <= 600 * MIB
    for block, _ in living:
        one.free(block)
    one.empty_cache()
    assert one.reserved_bytes == one.allocated_bytes == 0


PLAYED = (Settings(), EXPANDABLE, Settings(max_split_size_bytes=50 * MIB))


@pytest.mark.parametrize("given_settings", PLAYED)
@pytest.mark.parametrize("limit_mib", [400, 1500, None])
@pytest.mark.parametrize("seed", range(4))
def test_a_course_is_played_as_its_requests_are_served_one_by_one(
    given_settings: Settings, limit_mib: int | None, seed: int
) -> None:
    draw = Random(seed)
    sizes: list[int] = []
    events: list[int] = []
    alive: list[int] = []
    for _ in range(600):
        if alive and draw.random() < 0.48:
            events.append(~alive.pop(draw.randrange(len(alive))))
        else:
            events.append(len(sizes))
            alive.append(len(sizes))
            sizes.append(given_settings.rounded(draw.randrange(1, 90) * draw.choice((KIB, 48 * KIB, MIB))))
    streams = {number: "other" for number in range(len(sizes)) if draw.random() < 0.2}
    one, other = allocator(limit_mib, given_settings), allocator(limit_mib, given_settings)
    blocks: dict[int, Block] = {}
    ends: int | None = None  # the birth that there is no segment for
    for event in events:
        if event < 0:
            one.free(blocks.pop(~event))
            continue
        try:
            blocks[event] = one.serve(sizes[event], streams.get(event, ""))
        except NoSegment:
            ends = event
            break
    played: dict[int, Block] = {}
    failed: int | None = None
    try:
        other.play(iter(events), sizes, streams, played)
    except NoSegment:
        failed = other.asked
    assert failed == ends
    assert {number: (block.address, block.size) for number, block in played.items()} == {
        number: (block.address, block.size) for number, block in blocks.items()
    }
    figures = ("allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "peak_reserved_bytes", "retries")
    for figure in (*figures, "held_bytes", "largest_free_bytes"):
        assert getattr(other, figure) == getattr(one, figure), figure


@pytest.mark.sweep(6)
@settings(max_examples=12, deadline=None)
@given(setups(), st.sampled_from([1, 2, 5]), st.booleans(), st.lists(st.integers(0, 110), min_size=1, max_size=4))
def test_a_run_that_waits_ends_as_one_that_does_not(
    setup: Setup, batch: int, expandable: bool, shares: list[int]
) -> None:
    """It is asked for less than it needs, which it says, and goes on."""
    record, first = records_of(setup, batch)
    rules = Settings(expandable_segments=expandable)
    whole = reserve(record, batch, rules, None, first)
    for room in (None, whole.reserved_bytes * 9 // 10):
        run = SimulatedRun(record, batch, rules, room, first, ())
        for share in sorted(shares):
            most = whole.reserved_bytes * share // 100
            try:
                assert run.reservation(most).reserved_bytes <= whole.reserved_bytes
            except Exceeded:
                assert whole.reserved_bytes > most
        assert run.reservation() == reserve(record, batch, rules, room, first)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.sampled_from((512, 700 * KIB, 3 * MIB, 30 * MIB)), min_size=1, max_size=40),
    frees=st.lists(st.integers(0, 39), max_size=40),
    one=st.sampled_from((Settings(), EXPANDABLE, Settings(max_split_size_bytes=20 * MIB))),
)
def test_what_a_closed_allocator_held_goes_without_a_garbage_collection(
    sizes: list[int], frees: list[int], one: Settings
) -> None:
    """A gate simulates hundreds of runs, and collections that wait for their blocks would be its largest memory."""
    gc.freeze()  # what is there already is not looked through
    gc.disable()
    try:
        simulated = CachingAllocator(one)
        alive = {}
        for number, size in enumerate(sizes):
            alive[number] = simulated.malloc(size)
            for freed in frees[number : number + 1]:
                if freed in alive:
                    simulated.free(alive.pop(freed))
        simulated.close()
        alive.clear()
        del simulated
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not any(isinstance(one, Block) for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()
