"""Closed form: what was never traced with shards is composed of its parts, and what each device has adds up."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.job import build_job
from vramplan.planner.decision import Decision, decide
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.closed_form

SHAPE = {"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 256, "micro_batch_size": 2}
SHAPE |= {"activation_checkpointing": "full"}
DEVICES = 8


def job(sharding: str, **keys: Any) -> ResolvedJob:
    return build_job({**SHAPE, "parallel": {"data": DEVICES, "sharding": sharding}, **keys})


def states(decision: Decision, category: str) -> int:
    return sum(state.at(2) for state in decision.record.states if state.category == category)


@pytest.mark.parametrize("sharding", ["fsdp", "zero2", "zero3"])
def test_the_weights_of_a_reference_are_shared_where_those_of_the_model_are(sharding: str) -> None:
    decision = decide(job(sharding, loss="dpo"))
    parameters = decision.record.parameters
    itemsize = 4 if sharding == "fsdp" else 2  # TRL loads both models in fp32, and DeepSpeed makes them 16 bits
    share = 1 if sharding == "zero2" else DEVICES  # TRL gives the reference stage 0 below stage 3
    assert states(decision, "reference") == pytest.approx(parameters * itemsize / share, rel=0.01)
    assert not any("loss dpo was never traced together" in said for said in decision.job.composed)


def test_four_bit_weights_are_shared_as_they_are_packed() -> None:
    """Half a byte for each weight of a linear layer on all devices, and on each the maxima of its blocks."""
    decision = decide(job("zero3", adapter={"kind": "lora"}, quantization="nf4"))
    whole = decide(job("zero3", adapter={"kind": "lora"}))
    shape = decision.job.model
    width = shape.hidden_size
    key_value = shape.key_value_heads * shape.head_size
    linear = shape.layers * (2 * width * width + 2 * width * key_value + 3 * width * shape.intermediate_size)
    saved = linear * (2 - 0.5) / DEVICES - linear / 64 * 4
    assert states(whole, "weights") - states(decision, "weights") == pytest.approx(saved, rel=0.01)


def test_eight_bit_weights_are_shared_and_whole_in_the_states_of_their_layers() -> None:
    """A byte for each weight of a linear layer and four for each of its outputs on every device, beside what is cut."""
    decision = decide(job("zero3", adapter={"kind": "lora"}, quantization="int8"))
    whole = decide(job("zero3", adapter={"kind": "lora"}))
    shape = decision.job.model
    width = shape.hidden_size
    key_value = shape.key_value_heads * shape.head_size
    linear = shape.layers * (2 * width * width + 2 * width * key_value + 3 * width * shape.intermediate_size)
    outputs = shape.layers * (3 * width + 2 * key_value + 2 * shape.intermediate_size)
    added = linear + 4 * outputs - linear * (2 - 1) / DEVICES
    assert states(decision, "weights") - states(whole, "weights") == pytest.approx(added, rel=0.01)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_an_optimizer_of_eight_bits_steps_the_part_of_a_device(sharding: str) -> None:
    """Two states of a byte for each element of the part, and the maxima of their blocks of 256."""
    decision = decide(job(sharding, optimizer="adamw-8bit"))
    part = decision.record.parameters / DEVICES
    assert states(decision, "master") == pytest.approx(4 * part, rel=0.01)
    assert states(decision, "optimizer") == pytest.approx(2 * part * (1 + 4 / 256), rel=0.02)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("model", ["falcon-7b", "mpt-7b", "flan-t5-base", "deepseek-v2-lite", "mixtral-8x7b"])
def test_a_device_has_its_part_of_each_family(model: str) -> None:
    for sharding, itemsize in (("fsdp", 4), ("zero3", 2)):
        keys = {"model": model, "target_length": 64} if model == "flan-t5-base" else {"model": model}
        decision = decide(job(sharding, **keys))
        parameters = decision.record.parameters
        assert states(decision, "weights") == pytest.approx(parameters * itemsize / DEVICES, rel=0.01)


def test_checkpoints_that_are_reentrant_have_a_wider_margin_under_the_first_fsdp() -> None:
    parallel = {"data": DEVICES, "sharding": "fsdp", "fsdp_version": 1}
    both = (decide(job("fsdp", checkpoint_reentrant=one, parallel=parallel)) for one in (False, True))
    plain, reentrant = (one.choice.rung.peak for one in both)
    assert reentrant.high / reentrant.allocated > plain.high / plain.allocated
