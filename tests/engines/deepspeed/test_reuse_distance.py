"""Weights that DeepSpeed keeps because they come again within a number of elements, 1e9 unless a configuration says so.

A model of a million elements is within that as a whole, so the distance is made as small as the model is.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.engines.deepspeed import zero3_gathered, zero3_plan
from vramplan.job import build_job

JOB: dict[str, Any] = {
    "model": {
        "name": "twelve-blocks",
        "family": "llama",
        "transformers_model_type": "llama",
        "layers": 12,
        "hidden_size": 96,
        "attention_heads": 6,
        "key_value_heads": 2,
        "head_size": 16,
        "intermediate_size": 160,
        "vocabulary_size": 1003,
        "max_positions": 128,
        "tied_embeddings": False,
    },
    "gpu": {"name": "trace", "memory": "8192 GiB"},
    "sequence_length": 32,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "precision": "mixed-bf16",
    "optimizer": "adamw",
    "optimizer_implementation": "fused",
    "attention": "efficient",
    "loss": "standard",
    "max_gradient_norm": 0.0,
    "runtime": "transformers",
    "allocator": "estimate",
    "reserve": 0,
}
PARALLEL = {
    "data": 2,
    "sharding": "zero3",
    "reduce_bucket_size": 9216,
    "stage3_prefetch_bucket_size": 8294,
    "stage3_param_persistence_threshold": 960,
    "overlap_comm": True,
}
LORA = {"kind": "lora", "targets": ["all-linear"], "rank": 8, "dropout": 0.0, "dtype": "bf16"}


STORED, FULL = {"activation_checkpointing": "none"}, {"activation_checkpointing": "full"}


@pytest.mark.truth
@pytest.mark.parametrize(
    ("distance", "live", "keys", "traced"),
    [
        (100_000, 200_000, STORED, (12_297_216, 12_425_216, 11_495_936)),
        (600_000, 200_000, STORED, (12_487_680, 12_615_680, 11_495_936)),
        (100_000, 200_000, FULL, (9_637_376, 9_765_376, 11_495_936)),
        (100_000, 100_000, FULL, (9_446_912, 9_574_912, 11_495_936)),
        (100_000, 200_000, {**FULL, "adapter": LORA}, (3_605_504, 3_733_504, 2_564_608)),
        (800_000, 200_000, {**FULL, "adapter": LORA}, (3_766_784, 3_894_784, 2_564_608)),
    ],
)
def test_weights_that_come_again_soon_stay_as_in_the_trace(
    distance: int, live: int, keys: dict[str, Any], traced: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rig `zero`, DeepSpeed 0.19.8, with stage3_max_reuse_distance at that number; `live`: gathered at most."""
    monkeypatch.setattr(zero3_gathered, "MAX_REUSE_DISTANCE", distance)
    zero3_plan.plan_of.cache_clear()
    try:
        found = phases_of(build_job({**JOB, **keys, "parallel": {**PARALLEL, "stage3_max_live_parameters": live}}))
    finally:
        zero3_plan.plan_of.cache_clear()
    assert tuple(found.values()) == traced
