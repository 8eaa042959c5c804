"""TRUTH: ZeRO without a contiguous bucket: gradients stay where they are, and stages 1 and 2 average copies of them.

zero_in_place.json and zero3_in_place.json name the rig, its versions and the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.extent import runs_whole
from tests.traces.composed import predicted
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

FILES = [Path(__file__).with_name(f"{name}.json") for name in ("zero_in_place", "zero3_in_place")]
TRACED = [one for file in FILES for one in json.loads(file.read_text("utf-8"))["jobs"]]


@pytest.mark.truth
@pytest.mark.parametrize("one", TRACED, ids=lambda one: one["name"])
def test_peaks_are_those_of_the_trace(one: dict[str, Any]) -> None:
    assert predicted(build_job(one["keys"])) == one["traced"]


@pytest.mark.closed_form
def test_the_quick_replay_is_that_of_every_block() -> None:
    for one in TRACED if runs_whole() else TRACED[::4]:
        job = build_job(one["keys"])
        assert job.micro_batch_size is not None
        setup = setup_of(job, job.activation_checkpointing or "none", (job.gradient_accumulation_steps or 1) > 1)
        quick = replay(setup, batch=min(job.micro_batch_size, 2))
        peaks = quick.peaks(job.micro_batch_size)
        assert peaks == replay(setup, batch=job.micro_batch_size, direct=True).peaks(job.micro_batch_size)
        assert peaks == replay(setup, batch=min(job.micro_batch_size, 2), unrolled=True).peaks(job.micro_batch_size)


@pytest.mark.closed_form
@pytest.mark.parametrize("stage", ["zero1", "zero2"])
def test_there_is_no_bucket(stage: str) -> None:
    """Without earlier micro-steps the buffer is made in backward; with a step on the host it is made all the same."""
    keys = {"model": "gpt2", "gpu": "a100-80gb", "runtime": "deepspeed", "precision": "mixed-bf16"}
    keys |= {"micro_batch_size": 1, "gradient_accumulation_steps": 1, "sequence_length": 8}
    keys |= {"activation_checkpointing": "none"}
    bucket = 500_000_000
    for offload, less in (([], 2 * bucket), (["optimizer", "gradients"], 0)):
        found = []
        for contiguous in (True, False):
            parallel = {"data": 4, "sharding": stage, "reduce_bucket_size": bucket, "contiguous_gradients": contiguous}
            job = build_job({**keys, "parallel": parallel, "offload": offload})
            found.append(replay(setup_of(job, "none", False)).peaks(1)["backward"])
        assert (found[0] - found[1] > 0.5 * less) is (less > 0)
        assert less or found[0] == found[1]


@pytest.mark.closed_form
def test_the_bucket_goes_and_gradients_stay() -> None:
    """A bucket for all gradients is as large as they are: without it the states are less, and backward no more."""
    keys = next(one for one in TRACED if one["name"] == "zero3 olmo2, frozen: parts, precision: mixed")["keys"]
    found = {}
    for contiguous in (True, False):
        parallel = {"data": 4, "sharding": "zero3", "contiguous_gradients": contiguous, "reduce_bucket_size": 409_600}
        record = replay(
            setup_of(build_job({**keys, "parallel": parallel, "frozen": [], "sequence_length": 8}), "none", False)
        )
        found[contiguous] = record
    assert found[True].static_bytes(2) - found[False].static_bytes(2) == 2 * 409_600
    assert found[False].peaks(2)["forward"] == found[True].peaks(2)["forward"] - 2 * 409_600
    assert found[True].peaks(2)["backward"] - 2 * 409_600 < found[False].peaks(2)["backward"]
