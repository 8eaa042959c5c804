"""What the simulated allocator is given, from one replay for every micro-batch and from one for each."""

from __future__ import annotations

from vramplan.replay.setup import Setup
from vramplan.replay.step import replay


def same_requests(setup: Setup, batch: int) -> None:
    """An unrolled replay asks for what the replay at the micro-batch does, storage by storage."""
    unrolled, literal = replay(setup, batch=min(batch, 2), unrolled=True), replay(setup, batch=batch, direct=True)
    assert unrolled.requests == literal.requests
    assert unrolled.sizes(batch) == literal.sizes(batch)
    assert unrolled.operators == literal.operators
    assert [one.at(batch) for one in unrolled.states] == [one.at(batch) for one in literal.states]
    assert (unrolled.weight_bytes, unrolled.state_bytes) == (literal.weight_bytes, literal.state_bytes)
    assert unrolled.elsewhere == literal.elsewhere
    assert unrolled.without_a_block(batch) == literal.without_a_block(batch)
