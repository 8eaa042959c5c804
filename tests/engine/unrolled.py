"""What the simulated allocator is given, against the replay at the micro-batch."""

from __future__ import annotations

from vramplan.planner.reserving import records_of
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay, stands_for


def same_requests(setup: Setup, batch: int) -> None:
    """The replay that is simulated asks for what the replay at the micro-batch does, storage by storage."""
    (unrolled, _), literal = records_of(setup, stands_for(setup, batch)), replay(setup, batch=batch, direct=True)
    assert unrolled.requests == literal.requests
    assert unrolled.sizes(batch) == literal.sizes(batch)
    assert unrolled.operators == literal.operators
    assert [one.at(batch) for one in unrolled.states] == [one.at(batch) for one in literal.states]
    assert (unrolled.weight_bytes, unrolled.state_bytes) == (literal.weight_bytes, literal.state_bytes)
    assert unrolled.elsewhere == literal.elsewhere
    assert unrolled.without_a_block(batch) == literal.without_a_block(batch)
