"""A simulated run that waits for a larger limit goes on as the run of a smaller device, where it could be one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.draws import setups
from tests.engine.examples import model, setup
from vramplan.planner.replays import Replays
from vramplan.planner.reserving import records_of
from vramplan.replay.caching.allocator import Exceeded
from vramplan.replay.caching.run import SimulatedRun, reserve
from vramplan.replay.setup import Setup
from vramplan.values.allocator import Settings

PLAIN = Settings()


def small(layers: int = 5) -> Setup:
    """What it reserves for activations comes behind the states, which are made at once."""
    shape = model("llama", layers=layers, hidden_size=64, attention_heads=4, key_value_heads=4, head_size=16)
    return setup(shape, sequence_length=256)


@pytest.mark.parametrize("layers", [2, 5])
@pytest.mark.parametrize("share", [100, 99, 95, 80, 40])
def test_it_ends_as_that_of_the_smaller_device(layers: int, share: int) -> None:
    record, first = records_of(small(layers), 2)
    whole = reserve(record, 8, PLAIN, None, first).reserved_bytes
    room = whole * share // 100
    run = SimulatedRun(record, 8, PLAIN, 2 * whole, first, ())
    with pytest.raises(Exceeded):
        run.reservation(room - 1)
    assert run.goes_on_with(room)
    found = run.reservation()
    assert found == reserve(record, 8, PLAIN, room, first)
    assert (found.failure is None and not found.retries) == (share == 100)


@pytest.mark.parametrize(
    "rules",
    [Settings(expandable_segments=True), Settings(max_split_size_bytes=2**25), Settings(memory_fraction=0.9)],
    ids=["expandable", "split", "fraction"],
)
def test_where_the_limit_decides_more_it_does_not_go_on(rules: Settings) -> None:
    record, first = records_of(small(), 2)
    whole = reserve(record, 8, rules, None, first).reserved_bytes
    run = SimulatedRun(record, 8, rules, 2 * whole, first, ())
    with pytest.raises(Exceeded):
        run.reservation(whole - 1)
    assert not run.goes_on_with(whole)


def test_one_that_has_reserved_more_or_has_met_its_limit_does_not_go_on() -> None:
    record, first = records_of(small(), 2)
    whole = reserve(record, 8, PLAIN, None, first).reserved_bytes
    run = SimulatedRun(record, 8, PLAIN, 2 * whole, first, ())
    with pytest.raises(Exceeded):
        run.reservation(whole - 1)
    assert not run.goes_on_with(run.allocator.peak_reserved_bytes - 1)
    met = SimulatedRun(record, 8, PLAIN, whole * 95 // 100, first, ())
    met.reservation()
    assert not met.goes_on_with(2 * whole)


@settings(max_examples=4, deadline=None)
@given(setups(), st.sampled_from([1, 2, 5]), st.integers(30, 100), st.integers(0, 30))
def test_so_it_is_of_any_iteration(setup: Setup, batch: int, share: int, less: int) -> None:
    record, first = records_of(setup, batch)
    whole = reserve(record, batch, PLAIN, None, first).reserved_bytes
    run = SimulatedRun(record, batch, PLAIN, 2 * whole, first, ())
    room = whole * share // 100
    try:
        run.reservation(room - whole * less // 100)
    except Exceeded:
        if run.goes_on_with(room):
            assert run.reservation() == reserve(record, batch, PLAIN, room, first)


def test_a_smaller_device_takes_the_run_that_waits_and_the_larger_one_begins_again() -> None:
    replays, one = Replays(), small()
    record, first = records_of(one, 2)
    whole = reserve(record, 8, PLAIN, None, first).reserved_bytes
    large, less = (replays.simulation(one, 8, PLAIN, room, ()) for room in (2 * whole, whole * 95 // 100))
    assert large.exceeds(less.limit_bytes)
    (waiting,) = large.waiting.values()
    assert less.reservation == Replays().simulation(one, 8, PLAIN, less.limit_bytes, ()).reservation
    assert waiting.allocator.limit_bytes == less.limit_bytes
    assert not large.waiting
    assert large.reservation == reserve(record, 8, PLAIN, None, first)
