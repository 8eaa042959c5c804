"""What streams keep for themselves: blocks that one of them has freed are of no use to the others."""

from __future__ import annotations

import pytest

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
