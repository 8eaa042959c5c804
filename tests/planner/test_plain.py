"""What one device without sharding tells of those that share: no larger micro-batch has room than it says."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.bounds.plain import has_room_for_states, most_within, plain_setup, simpler
from vramplan.planner.judge import Judge
from vramplan.planner.time.kernels import micro_of
from vramplan.planner.time.rates import rates_of
from vramplan.planner.time.step import is_causal
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

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


MODELS = (
    *("gpt2", "llama-3.2-1b", "mistral-7b", "qwen2.5-7b", "gemma-2-2b", "phi-3-mini", "qwen3-8b", "pythia-1.4b"),
    *("bert-base-uncased", "t5-base", "mixtral-8x7b", "falcon-7b", "vit-base-patch16-224", "olmo-2-7b"),
)
STRATEGIES = ("none", "full", "every:2", "every:4", "sqrt", "selective", "selective-op")


@pytest.mark.sweep(7)
@pytest.mark.parametrize("model", MODELS)
def test_simpler_checkpoints_compute_no_more(model: str) -> None:
    compared = 0
    for program in ("transformers", "megatron", "torchtitan", "litgpt"):
        seconds: dict[str, float] = {}
        jobs: dict[str, ResolvedJob] = {}
        for strategy in STRATEGIES:
            keys = {"model": model, "gpu": "h100", "runtime": program, "activation_checkpointing": strategy}
            try:
                job = jobs[strategy] = build_job({**keys, "precision": "mixed-bf16"})
            except InputError:
                continue
            kernels, rates = replay(plain_setup(job, whole=True)).kernel_classes, rates_of(job)
            assert rates is not None
            micro = micro_of(kernels, 4, rates, causal=is_causal(job), compiled=False)
            seconds[strategy] = sum(micro.seconds.values())
        for strategy, own in seconds.items():
            simple = simpler(jobs[strategy]).activation_checkpointing or ""
            assert seconds.get(simple, 0.0) <= own * (1 + 1e-9), (program, strategy)
            compared += simple in seconds and simple != strategy
    assert compared or model == "t5-base"  # whose checkpoints are each their own


@pytest.mark.parametrize("sharing", [one for one in SHARED if "compile" not in one])
def test_what_has_no_room_for_its_states_is_larger(sharing: dict[str, Any]) -> None:
    job = build_job({"gpu": "a100-80gb", "precision": "mixed-bf16", **TRAINED[0], **sharing} | _precision(sharing))
    judge = Judge(job)
    least = judge.allocated_bytes("none", 1, False)
    assert has_room_for_states(job, "none", least, judge.replays)
    assert not has_room_for_states(job, "none", least // 20, judge.replays)
