"""What one device without sharding tells of those that share: no larger micro-batch has room than it says."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.job import build_job
from vramplan.planner.judge import Judge
from vramplan.planner.plain import most_within

pytestmark = pytest.mark.contract

SHARED: tuple[dict[str, Any], ...] = (
    {"parallel": {"data": 4, "sharding": "ddp"}},
    {"parallel": {"data": 4, "sharding": "zero1"}},
    {"parallel": {"data": 4, "sharding": "zero2"}},
    {"parallel": {"data": 4, "sharding": "zero3"}},
    {"parallel": {"data": 4, "sharding": "zero3"}, "offload": ["optimizer"]},
    {"parallel": {"data": 4, "sharding": "zero3"}, "compile": True},
    {"parallel": {"data": 4, "sharding": "fsdp"}},
    {"parallel": {"data": 4, "sharding": "fsdp", "shards": 2}},
)
TRAINED: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "sequence_length": 256},
    {"model": "gpt2", "sequence_length": 250, "activation_checkpointing": "full", "loss": "fused"},
    {"model": "llama-3.2-1b", "sequence_length": 128, "adapter": {"kind": "lora"}, "activation_checkpointing": "sqrt"},
    {"model": "t5-small", "sequence_length": 128, "activation_checkpointing": "full"},
    {"model": "vit-base-patch16-224", "activation_checkpointing": "every:2"},
)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("trained", TRAINED)
def test_no_larger_micro_batch_has_room(trained: dict[str, Any]) -> None:
    asked = 0
    for shared in SHARED:
        if "offload" in shared and "adapter" in trained:
            continue
        job = build_job({"gpu": "a100-80gb", "precision": "mixed-bf16", **trained, **shared} | _precision(shared))
        judge = Judge(job)
        strategy = job.activation_checkpointing or "none"
        for accumulates in (False, True):
            for limit in (judge.limits.high // 20, judge.limits.high // 3, judge.limits.high):
                found = judge.largest_micro_batch(strategy, accumulates, limit)
                assert found <= most_within(job, strategy, limit, judge.replays), (shared, accumulates, limit)
                asked += found > 1
    assert asked > 20


def _precision(shared: dict[str, Any]) -> dict[str, str]:
    return {"precision": "fsdp-bf16"} if shared["parallel"]["sharding"] == "fsdp" else {}
