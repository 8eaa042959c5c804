"""Qwen3-Next under ZeRO-3, with adapters and full checkpoints: phases that the rig `zero` traced."""

from __future__ import annotations

import pytest

from tests.oracle.compare import phases_of
from vramplan.job import build_job

JOB = {
    "name": "row",
    "model": {
        "name": "row",
        "transformers_model_type": "qwen3_next",
        "layers": 4,
        "hidden_size": 64,
        "attention_heads": 4,
        "key_value_heads": 2,
        "head_size": 16,
        "intermediate_size": 96,
        "vocabulary_size": 500,
        "max_positions": 512,
        "experts": {
            "count": 32,
            "active": 2,
            "intermediate_size": 512,
            "shared": 1,
            "shared_intermediate_size": 64,
        },
    },
    "gpu": {"name": "trace", "memory": "8192 GiB"},
    "runtime": "transformers",
    "hold_outputs": False,
    "max_gradient_norm": None,
    "weight_dtype": None,
    "micro_batch_size": 2,
    "sequence_length": 64,
    "gradient_accumulation_steps": 1,
    "precision": "mixed-bf16",
    "optimizer": "adamw",
    "optimizer_implementation": "fused",
    "attention": "efficient",
    "activation_checkpointing": "full",
    "adapter": {"kind": "lora", "targets": ["all-linear"], "rank": 4},
    "parallel": {"data": 2, "sharding": "zero3"},
}


@pytest.mark.truth
def test_experts_that_a_checkpoint_gathers_again_go_with_the_module_it_runs_again_for() -> None:
    """That module holds others and no parameter that it asks for itself."""
    assert phases_of(build_job(JOB)) == {"forward": 113569280, "backward": 121379328, "step": 33754112}
