"""What streams keep for themselves: blocks that one of them has freed are of no use to the others."""

from __future__ import annotations

import pytest

from vramplan.engines.megatron.deepspeed import not_joined
from vramplan.planner.budget import footprint
from vramplan.replay.record import Record
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import FP32

MIB = 2**18  # elements of fp32


def record(*, apart: bool) -> Record:
    """One tensor of 3 MiB, and after it one of 2 MiB."""
    tape = Tape(2)
    tape.phase("forward")
    first = tape.new("empty", (3 * MIB,), FP32, False)
    del first
    tape.phase("backward")
    second = tape.new("empty", (2 * MIB,), FP32, False)
    if apart:
        tape.on_another_stream(second)
    del second
    tape.phase("step")
    return Record(tape, [], 1)


@pytest.mark.closed_form
def test_a_stream_cannot_use_what_another_has_freed() -> None:
    assert record(apart=False).peak_bytes(2) == record(apart=True).peak_bytes(2) == 3 * 2**20
    assert record(apart=False).stranded_bytes(2) == 0
    assert record(apart=True).stranded_bytes(2) == 2 * 2**20


@pytest.mark.closed_form
def test_what_streams_keep_is_reserved_and_not_allocated() -> None:
    plain, beside = footprint(1000, 500), footprint(1000, 500, stranded_bytes=100)
    assert plain.allocated == beside.allocated == 1000
    assert (plain.reserved, beside.reserved) == (1040, 1144)
    assert (beside.low, beside.device, beside.high) == (1100 + 250, 1144 + 500, 1210 + 500)


def large_after_small(large: int) -> Record:
    """Two tensors of 2 MiB at once, both freed, and then a larger one that may take a block of its own."""
    tape = Tape(2)
    tape.phase("forward")
    several = [tape.new("empty", (2 * MIB,), FP32, False) for _ in range(2)]
    del several
    tape.phase("backward")
    tape.phase("step")
    last = tape.new("flatten", (large,), FP32, False)
    not_joined(tape, last)
    del last
    return Record(tape, [], 1)


@pytest.mark.closed_form
def test_a_tensor_that_is_larger_than_each_freed_block_gets_one_of_its_own() -> None:
    found = large_after_small(3 * MIB)
    assert found.peak_bytes(2) == 4 * 2**20
    assert found.stranded_bytes(2) == found.returnable_bytes(2) == 3 * 2**20
    fitting = large_after_small(2 * MIB)
    assert fitting.stranded_bytes(2) == fitting.returnable_bytes(2) == 0


@pytest.mark.closed_form
def test_what_streams_keep_is_not_given_back() -> None:
    assert record(apart=True).returnable_bytes(2) == 0


@pytest.mark.closed_form
def test_the_lower_end_has_nothing_of_what_goes_back_where_memory_is_short() -> None:
    kept, returned = (footprint(1000, 500, stranded_bytes=100, returnable_bytes=size) for size in (0, 100))
    assert (returned.reserved, returned.device, returned.high) == (kept.reserved, kept.device, kept.high)
    assert (kept.low, returned.low) == (1100 + 250, 1000 + 250)


@pytest.mark.closed_form
def test_a_simulation_that_gave_blocks_back_is_believed() -> None:
    found = footprint(1000, 500, stranded_bytes=100, simulated_bytes=1050, returnable_bytes=100)
    assert (found.reserved, found.stranded, found.device) == (1050, 50, 1550)


@pytest.mark.closed_form
def test_a_simulation_that_came_through_needs_no_room_for_other_streams() -> None:
    """Allocated plus streams is no floor of what a run reserved that gave segments back and went on."""
    found, other = (
        footprint(1000, 500, stranded_bytes=100, simulated_bytes=1050, came_through=came) for came in (True, False)
    )
    assert (found.reserved, found.stranded, found.device) == (1050, 50, 1550)
    assert (other.reserved, other.device) == (1100, 1600)
