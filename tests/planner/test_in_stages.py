"""The bound of a pipeline's slowest stage, beside the time that its own replays have."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.bounds import Bounds
from vramplan.answers.fit import describe
from vramplan.job import build_any_job
from vramplan.planner.bounds.in_stages import kernels_of_stages, stage_setup
from vramplan.planner.bounds.plain import plain_of
from vramplan.planner.decision import decide
from vramplan.replay.kernels import at
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.closed_form

MICRO, STEPS = 2, 8


def job(**parallel: Any) -> ResolvedJob:
    keys = {"model": "gpt2-medium", "gpu": "a100-80gb", "runtime": "megatron", "activation_checkpointing": "none"}
    steps = {"micro_batch_size": MICRO, "gradient_accumulation_steps": STEPS}
    found = build_any_job({**keys, **steps, "parallel": {"data": 2, **parallel}})
    assert isinstance(found, ResolvedJob)
    return found


PIPELINES: list[dict[str, Any]] = [
    {"pipeline": 4},
    {"pipeline": 5},  # 24 blocks: five, five, five, five and four
    {"pipeline": 2, "tensor": 4},
    {"pipeline": 4, "schedule": "interleaved:2"},
    {"pipeline": 2, "context": 2},
    {"tensor": 2},
]


@pytest.mark.parametrize("parallel", PIPELINES, ids=str)
def test_it_is_below_the_answer_and_near(parallel: dict[str, Any]) -> None:
    """By at most a tenth: what a stage sends and receives is no kernel of the replay that pipelines share."""
    piped = job(**parallel)
    rate = describe(decide(piped, whole_ladder=False), with_remedies=False).time
    assert rate is not None
    bound = Bounds().least_of_stages(piped) * rate.samples_per_second
    assert 0.9 < bound <= 1 + 1e-9


def test_the_last_stage_has_the_head_and_the_longest_most_blocks() -> None:
    piped = job(pipeline=5)
    setup = stage_setup(piped)
    assert setup is not None
    record = replay(setup, batch=MICRO)
    longest, last = kernels_of_stages(piped, plain_of(record, record.kernels))
    assert (longest.blocks, last.blocks) == (5, 4)
    assert {one.unit for one in longest.kernels} == {1}
    shape = piped.model
    tokens, vocabulary = MICRO * piped.sequence_length, shape.vocabulary_size
    head = sum(at(one.flops, MICRO) * one.times for one in last.kernels if not one.unit)
    padded = -(-vocabulary // 128) * 128  # Megatron's make-vocab-size-divisible-by
    assert head == 3 * 2 * tokens * shape.hidden_size * padded


@pytest.mark.parametrize("checkpoints", ["sqrt", "every:3"])
def test_checkpoints_that_begin_anew_in_a_stage_count_as_those_of_each_block(checkpoints: str) -> None:
    piped = job(pipeline=4)._replace(activation_checkpointing=checkpoints)
    assert stage_setup(piped) == stage_setup(piped._replace(activation_checkpointing="full"))


def test_a_replica_on_one_device_has_no_such_bound() -> None:
    assert Bounds().least_of_stages(job()) == 0.0
