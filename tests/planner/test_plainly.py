"""CONTRACT. What tests go without that say so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import plainly
from tests.cli.running import ABLE, TINY
from vramplan import fit

pytestmark = pytest.mark.contract

CARD = {"name": "small", "memory": "1 GiB", **ABLE}
JOB: dict[str, Any] = {"model": TINY, "gpu": CARD, "runtime": "pytorch", "activation_checkpointing": "none"}


def test_an_answer_has_neither_remedies_nor_a_simulation_and_is_the_same_else() -> None:
    keys = JOB | {"micro_batch_size": 4096}
    whole = fit(**keys)
    assert whole.verdict == "does-not-fit"
    assert whole.remedies
    with plainly():
        plain = fit(**keys)
    assert plain.remedies is None
    assert (plain.verdict, plain.peak) == (whole.verdict, whole.peak)
    assert fit(**keys) == whole


def test_an_estimate_is_left_as_it_is() -> None:
    keys = JOB | {"micro_batch_size": 1}
    assert fit(**keys).allocator is not None
    with plainly():
        plain = fit(**keys)
    assert plain.allocator is None
    assert plain.peak.allocated_bytes == fit(**keys, allocator="estimate").peak.allocated_bytes
