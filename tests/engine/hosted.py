"""What holds wherever activations lie on the host, for the tests of every way to share states."""

from __future__ import annotations

from hypothesis import assume

from vramplan.replay.offload import pinned_bytes
from vramplan.replay.record import Record
from vramplan.replay.recorder import rounded
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques.evidence import OFFLOAD, is_traced_with

MOST_SAVED = 6  # tensors of one operator: fused attention with a mask


def what_is_saved_leaves_the_device(setup: Setup, batch: int) -> tuple[Record, Record]:
    """The replays with activations on the device and on the host; the latter needs no more but for what comes back."""
    assume(is_traced_with(setup.model, OFFLOAD))
    away = setup._replace(offload_activations=True)
    plain, record = (replay(one, batch=min(batch, 2)) for one in (setup, away))
    literal = replay(away, batch=batch, direct=True)
    assert record.peaks(batch) == literal.peaks(batch)
    assert pinned_bytes(record.host, batch) == pinned_bytes(literal.host, batch) > 0
    assert record.saved_bytes(batch) <= plain.saved_bytes(batch)
    assert record.peaks(batch)["forward"] <= plain.peaks(batch)["forward"]
    largest = sorted((rounded(one.at(batch)) for one in record.host), reverse=True)
    assert record.peaks(batch)["backward"] <= plain.peaks(batch)["backward"] + sum(largest[:MOST_SAVED])
    assert record.host_states == plain.host_states
    return plain, record
