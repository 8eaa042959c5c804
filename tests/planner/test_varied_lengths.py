"""Batches that are padded to their longest sample: what the allocator keeps of lengths that are no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.running import run
from vramplan import InputError, fit
from vramplan.job import build_job
from vramplan.planner.bands import ALONE
from vramplan.planner.budget import low_of
from vramplan.planner.reserving import SHARES, lengths_of, records_of
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.run import reserve

BASE: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "gpu": "a100",
    "sequence_length": 1024,
    "precision": "pure-bf16",
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "activation_checkpointing": "full",
}
EXPANDABLE = "expandable_segments:True"


@pytest.mark.closed_form
def test_the_tensors_are_those_of_the_longest_and_the_cache_has_more() -> None:
    one = fit(**BASE, allocator="simulate")
    varied = fit(**BASE, varied_lengths=True)
    assert varied.peak.allocated_bytes == one.peak.allocated_bytes
    logits = 2 * 1024 * 128256 * 4  # of the longest in fp32, beside which are their softmax and gradient
    longer, tensors = 6, 3  # batches that are longer than all before, and what each may ask for anew
    more = varied.peak.reserved_bytes - one.peak.reserved_bytes
    assert longer * logits < more < longer * tensors * logits
    assert varied.peak.low_bytes < one.peak.device_bytes  # what the order of lengths decides
    free_is_free = fit(**BASE, varied_lengths=True, allocator=EXPANDABLE)
    assert free_is_free.peak.reserved_bytes < one.peak.reserved_bytes + logits
    outside = free_is_free.peak.device_bytes - free_is_free.peak.reserved_bytes
    assert free_is_free.peak.low_bytes == low_of(free_is_free.peak.allocated_bytes, outside, ALONE)


@pytest.mark.closed_form
def test_iterations_of_one_length_reserve_what_that_length_does() -> None:
    job = build_job({**BASE, "allocator": "simulate"})
    setup = setup_of(job, "full", accumulates=False)
    records = records_of(setup, 2)
    record, first = records
    alone = reserve(record, 2, first=first)
    assert reserve(record, 2, first=first, others=[records] * 3).reserved_bytes == alone.reserved_bytes
    shorter = [records_of(setup._replace(sequence_length=length), 2) for length in lengths_of(setup)]
    falling = sorted(shorter, key=lambda one: -one[0].peak_bytes(2))
    # behind the longest everything finds a block
    held = reserve(shorter[0][0], 2, others=[records, *falling]).reserved_bytes
    assert held < reserve(record, 2, first=first, others=shorter).reserved_bytes


@pytest.mark.closed_form
def test_each_of_the_longest_so_far_halves_what_is_left() -> None:
    longest = [share for place, share in enumerate(SHARES) if share > max((0.0, *SHARES[:place]))]
    assert [1 - share for share in longest] == [0.5**power for power in range(1, len(longest) + 1)]
    assert all(0 < share < 1 for share in SHARES)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"packing": True, "attention": "flash"}, "packed sequences"),
        ({"compile": True}, "compile"),
        ({"allocator": "estimate"}, "simulated allocator"),
        ({"sequence_length": 4}, "4 tokens"),
    ],
)
def test_where_nothing_varies_it_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"varied_lengths.*{words}"):
        fit(**{**BASE, **keys}, varied_lengths=True)


@pytest.mark.contract
def test_the_answer_says_what_is_kept_and_what_helps() -> None:
    words = ("fit", "-m", "llama-3.2-1b", "-g", "a100", "--micro-batch", "2", "--seq", "1024", "--varied-lengths")
    ran = run(*words, "--format", "json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["job"]["varied_lengths"] is True
    assert found["allocator"] is not None
    said = " ".join(found["warnings"])
    assert "longer than all before it" in said
    assert f"PYTORCH_ALLOC_CONF={EXPANDABLE} saves" in said
