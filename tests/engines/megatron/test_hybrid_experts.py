"""Blocks of Nemotron 3 under Megatron-LM, some of them experts, and the stages that have them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.megatron.test_hybrid import MODEL, SPACE, record_of
from vramplan.engines.megatron.hybrid import Hybrid
from vramplan.job import build_job
from vramplan.planner.judge import Judge
from vramplan.replay.pipeline.stages import contenders, stages_of
from vramplan.values.parallel import Split

EXPERTS = {
    "count": 8,
    "active": 2,
    "intermediate_size": 48,
    "shared_intermediate_size": 96,
    "dense_layers": [0, 2, 3],
    "normalized": True,
    "groups": 1,
    "active_groups": 1,
}
MIXED: dict[str, Any] = {**MODEL, "experts": EXPERTS}
"""A state space, experts, a state space, attention."""


@pytest.mark.closed_form
@pytest.mark.parametrize("latent", [None, 32])
def test_experts_have_no_gate_and_may_be_narrower(latent: int | None) -> None:
    """Two matrices each, between the router and the experts that every token passes; with a latent two layers more."""
    experts = EXPERTS if latent is None else {**EXPERTS, "latent_size": latent}
    width, narrow = 64, latent or 64
    dense = record_of(model=MODEL).parameters - 2 * width * 128
    own = 8 * width + 8 * 2 * narrow * 48 + 2 * width * 96 + (0 if latent is None else 2 * width * narrow)
    assert record_of(model={**MODEL, "experts": experts}).parameters == dense + own


@pytest.mark.closed_form
def test_devices_that_share_experts_have_a_part_of_them() -> None:
    whole = record_of(model=MIXED, parallel={"data": 4}).parameters
    shared = record_of(model=MIXED, parallel={"data": 4, "expert": 4}).parameters
    assert whole - shared == 8 * 2 * 64 * 48 * 3 // 4


@pytest.mark.parametrize("strategy", ["none", "full", "selective"])
def test_every_strategy_of_them_ends_with_as_many_deaths_as_births(strategy: str) -> None:
    record = record_of(model=MIXED, activation_checkpointing=strategy)
    assert record.peak_bytes(2) > record.static_bytes(2)
    assert record.end_bytes(2) >= 0


LONG: dict[str, Any] = {
    **MODEL,
    "layers": 8,
    "state_space": {**SPACE, "layers": [0, 1, 2, 3], "feedforward_layers": [4, 5, 6]},
}
"""Four state spaces, three feed-forward layers, attention."""


def test_a_stage_has_the_blocks_of_its_place() -> None:
    """Stages of as many blocks that are made of other modules are all asked, and each has its own weights."""
    split = Split(pipeline=4)
    stages = stages_of(split, 8, 8)
    assert [stage.starts for stage in stages] == [(0,), (2,), (4,), (6,)]
    assert contenders(stages) == [0, 1, 3]
    kinds = ["M", "M", "M", "M", "-", "-", "-", "*"]
    assert contenders(stages, lambda number: kinds[number]) == [0, 1, 2, 3]
    job = build_job(
        {
            "model": LONG,
            "gpu": "h100",
            "runtime": "megatron",
            "sequence_length": 64,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 8,
            "precision": "mixed-bf16",
            "attention": "flash",
            "activation_checkpointing": "none",
            "parallel": {"pipeline": 4},
        }
    )
    judge = Judge(job)
    spaces, dense = (judge.record("none", False, False, number).parameters for number in (1, 2))
    assert dense == 2 * (64 + 2 * 64 * 128)
    assert (
        spaces
        == record_of(model={**MODEL, "layers": 3}).parameters
        - record_of(
            model={**MODEL, "layers": 1, "state_space": {**SPACE, "layers": [], "feedforward_layers": [0]}}
        ).parameters
    )


def test_interleaved_parts_begin_where_they_stand() -> None:
    stages = stages_of(Split(pipeline=2, schedule="interleaved", virtual=2), 8, 8)
    assert [stage.starts for stage in stages] == [(0, 4), (2, 6)]


def test_nobody_traced_them() -> None:
    assert Hybrid.untraced
