"""TRUTH: what micro-steps under `no_sync` of FSDP hold, of which the last alone reduces gradients.

middle_steps.json has rows of 2, 3, 4 and 8 micro-steps of both versions of FSDP, whose traces ran all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.job import build_job
from vramplan.planner.reserving import records_of
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.run import reserve
from vramplan.replay.envelope import envelope_of
from vramplan.replay.step import replay

ROWS = json.loads(Path(__file__).with_name("middle_steps.json").read_text("utf-8"))
UNIT_BYTES = 4 * (5000 * 96 + 96)  # of gemma's root, in fp32


def job_of(row: dict[str, Any], **changed: Any) -> Any:
    return build_job({**ROWS["defaults"], **row["job"], **changed})


@pytest.mark.truth
@pytest.mark.parametrize("row", ROWS["jobs"], ids=lambda row: row["name"])
def test_peaks_are_those_of_the_trace(row: dict[str, Any]) -> None:
    assert phases_of(job_of(row)) == row["phase_peaks"]


def test_rows_are_of_steps_that_the_last_one_does_not_tell() -> None:
    """Else the rows would say nothing of the others."""
    found = set()
    for row in ROWS["jobs"]:
        job = job_of(row)
        record = replay(setup_of(job, job.activation_checkpointing, True), batch=1)
        assert record.earlier is not None
        if record.at_peak(1) is not record:
            found.add((job.sharding.version, job.gradient_accumulation_steps))
    assert found >= {(1, 3), (1, 4), (1, 8), (2, 2), (2, 8)}


@pytest.mark.parametrize("version", [1, 2])
def test_whole_gradients_are_there_until_a_middle_step_ends(version: int) -> None:
    """A middle step has a second gradient of what is outside of the blocks beside all whole ones.

    Where the loop sums shards in each micro-step, none of these is there.
    """
    row = next(one for one in ROWS["jobs"] if "gemma" in one["name"])
    keys = {"precision": "fp32", "activation_checkpointing": "full", "adapter": None, "sequence_length": 8}
    parallel = {"data": 4, "sharding": "fsdp", "fsdp_version": version}
    each, middle, first = (
        phases_of(job_of(row, **keys, parallel={**parallel, "no_sync": no_sync}, gradient_accumulation_steps=steps))
        for no_sync, steps in ((False, 4), (True, 4), (True, 2))
    )
    assert each["backward"] < first["backward"] <= middle["backward"]
    assert middle["backward"] - each["backward"] > UNIT_BYTES // 2
    assert middle["step"] == first["step"]


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.parametrize("version", [1, 2])
def test_the_simulated_allocator_has_all_whole_gradients_from_the_start_of_a_micro_step(
    version: int, steps: int
) -> None:
    """The replay makes those of a block where it comes to it; with little to save the peak is early in forward."""
    row = next(one for one in ROWS["jobs"] if "gemma" in one["name"])
    keys = {"precision": "fp32", "activation_checkpointing": "full", "adapter": None, "sequence_length": 8}
    parallel = {"data": 4, "sharding": "fsdp", "fsdp_version": version, "no_sync": True}
    job = job_of(row, **keys, parallel=parallel, gradient_accumulation_steps=steps, micro_batch_size=1)
    setup = setup_of(job, "full", accumulates=True)
    record, first = records_of(setup, 1)
    exact = replay(setup, batch=1).peak_bytes(1)
    assert exact <= reserve(record, 1, first=first).allocated_bytes <= exact * 1.01


def test_the_envelope_is_of_all_micro_steps() -> None:
    row = next(one for one in ROWS["jobs"] if "version 1, 4" in one["name"])
    job = job_of(row)
    record = replay(setup_of(job, job.activation_checkpointing, True), batch=2)
    for batch in (2, 7, 100):
        assert 0 <= record.peak_bytes(batch) - envelope_of(record).peak_bytes(batch) < 512 * 1000  # rounding of tensors
