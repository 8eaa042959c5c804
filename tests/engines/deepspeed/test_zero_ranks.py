"""The most loaded device of ZeRO 1 and 2: DeepSpeed's own engine as each of its devices, and a search over all of them.

The rows of `zero_rank_rows.json` are the phases of jobs on every device, most of them rows of `tests/oracle/`: the
engine of DeepSpeed 0.19.8 on tensors without data, once for each rank.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engine.examples import model
from tests.engine.examples import setup as example_setup
from tests.engines.deepspeed.test_zero import partitioned, partly_trained
from tests.oracle.compare import job_called, setup_of
from vramplan.engines.deepspeed.layout import Layout
from vramplan.job import build_job
from vramplan.planner.judge import Judge
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import MOST_GRADIENTS, Sharded, Zero

ROWS = json.loads((Path(__file__).parent / "zero_rank_rows.json").read_text())
COUNT = 35
MOST_DEVICES = 8  # that are looked at one by one


def job_of(row: dict[str, Any]) -> ResolvedJob:
    """The job of a row: one of those in a file of `tests/oracle/`, or its own."""
    if "file" in row:
        return job_called(row["file"], row["name"])
    job = build_job(row["job"])
    assert isinstance(job, ResolvedJob)
    return job


def highest(ranks: list[dict[str, int]]) -> dict[str, int]:
    return {phase: max(one[phase] for one in ranks) for phase in ranks[0]}


@pytest.mark.truth
def test_what_every_device_allocates() -> None:
    """Each phase of each device to the byte, and the answer is the largest of all."""
    wrong, seen = [], 0
    for row in ROWS:
        job = job_of(row)
        setup, batch = setup_of(job), job.micro_batch_size or 1
        for rank, traced in enumerate(row["ranks"]):
            found = replay(setup._replace(rank=rank), batch=min(batch, 2)).peaks(batch)
            wrong += [(row["name"], rank, found, traced)] if found != traced else []
            seen += 1
        found = replay(setup._replace(rank=None), batch=min(batch, 2)).peaks(batch)
        wrong += [(row["name"], None, found)] if found != highest(row["ranks"]) else []
    assert not wrong
    assert seen == COUNT


def test_the_rows_have_devices_that_hold_more_than_the_one_with_most_gradients() -> None:
    found = {}
    for row in ROWS:
        job = job_of(row)
        peak = replay(setup_of(job)).peak_bytes(job.micro_batch_size or 1)
        found[row["name"]] = max(max(one.values()) for one in row["ranks"]) > peak
    assert all(found.values())


def compare_with_all(setup: Setup, batch: int) -> None:
    """What is answered with the search over every device, by phases; and the device that it names."""
    assert setup.sharding is not None
    record = replay(setup, batch=min(batch, 2))
    each = [
        replay(setup._replace(rank=rank), batch=min(batch, 2)).peaks(batch) for rank in range(setup.sharding.shards)
    ]
    assert record.peaks(batch) == highest(each)
    rank = record.device_at(batch)
    named = replay(setup._replace(rank=MOST_GRADIENTS if rank is None else rank), batch=min(batch, 2))
    assert named.peak_bytes(batch) == record.peak_bytes(batch)


def few(setup: Setup) -> Setup:
    assert setup.sharding is not None
    return setup._replace(sharding=setup.sharding._replace(shards=min(setup.sharding.shards, MOST_DEVICES)))


@pytest.mark.sweep(4)
@settings(max_examples=15, deadline=None)
@given(partitioned(("zero1", "zero2")), st.sampled_from([1, 2, 5]), st.booleans())
def test_it_is_the_largest_of_all_devices(setup: Setup, batch: int, overlaps: bool) -> None:
    compare_with_all(overlapping(few(setup), overlaps=overlaps), batch)


NORMS_ARE_MOST = example_setup(
    model(
        "qwen2_5_vl",
        **dict.fromkeys(("layers", "attention_heads", "key_value_heads", "channels", "vision_layers"), 1),
        **dict.fromkeys(("vision_attention_heads", "vision_merge", "vision_frames"), 1),
        **dict.fromkeys(("hidden_size", "patch_size", "vision_hidden_size"), 8),
        **dict.fromkeys(("intermediate_size", "vision_intermediate_size"), 24),
        image_size=16,
        vision_window=48,
        vision_full_layers=(),
    ),
    precision="mixed-fp16",
    sequence_length=5,
    image_size=16,
    frozen=("vision_encoder",),
    sharding=Sharded(
        kind="zero1",
        shards=3,
        zero=Zero(
            reduce_bucket_size=3000,
            overlap_comm=False,
            prefetch_bucket_size=10000,
            param_persistence_threshold=0,
            max_live_parameters=40000,
        ),
    ),
)


@pytest.mark.sweep(12)
@settings(max_examples=15, deadline=None)
@given(partly_trained(("zero1", "zero2")), st.sampled_from([1, 2, 5]), st.booleans())
@example(NORMS_ARE_MOST, 1, False)
def test_it_is_with_less_than_every_weight(setup: Setup, batch: int, overlaps: bool) -> None:
    compare_with_all(overlapping(few(setup), overlaps=overlaps), batch)


@pytest.mark.sweep(4)
@settings(max_examples=15, deadline=None)
@given(partitioned(("zero1", "zero2")), st.integers(9, 200), st.sampled_from([1, 2]), st.booleans())
def test_devices_inside_one_parameter_are_alike(setup: Setup, shards: int, batch: int, overlaps: bool) -> None:
    """With more devices than parameters most are: to ask their first and last is to ask them all."""
    assert setup.sharding is not None
    many = overlapping(setup._replace(sharding=setup.sharding._replace(shards=shards)), overlaps=overlaps)
    of_few = replay(many, batch=batch).peaks(batch)
    with patch.object(Layout, "telling_ranks", property(lambda layout: tuple(range(layout.shards)))):
        assert replay(many, batch=batch).peaks(batch) == of_few


def overlapping(setup: Setup, *, overlaps: bool) -> Setup:
    """Stage 1 averages as gradients come if it is told to overlap."""
    assert setup.sharding is not None
    assert setup.sharding.zero is not None
    zero = setup.sharding.zero._replace(overlap_comm=overlaps)
    return setup._replace(sharding=setup.sharding._replace(zero=zero))


def test_the_allocator_is_simulated_for_one_device() -> None:
    """The one that holds most at the peak, from the beginning to the end."""
    job = build_job(
        {
            "model": "gpt2",
            "gpu": "h100",
            "sequence_length": 64,
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "activation_checkpointing": "full",
            "parallel": {"data": 8, "sharding": "zero2", "reduce_bucket_size": 1_000_000},
        }
    )
    assert isinstance(job, ResolvedJob)
    judge = Judge(job)
    record, setup = judge.record_at("full", 1, False), judge.setup_at("full", 1, False)
    assert setup.rank is not None
    one = replay(setup, batch=1, direct=True)
    assert one.peak_bytes(1) == record.peak_bytes(1)
    assert not one.looked_at
    assert record.looked_at
