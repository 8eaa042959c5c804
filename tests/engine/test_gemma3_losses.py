"""Losses on hidden states of Gemma 3 with its tower: phases that the rig `transformers` traced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.job import build_job

MODEL = {
    "name": "gemma3",
    "family": "gemma3_images",
    "transformers_model_type": "gemma3",
    "task": "lm",
    "vocabulary_size": 503,
    "hidden_size": 64,
    "layers": 1,
    "attention_heads": 4,
    "key_value_heads": 2,
    "head_size": 24,
    "intermediate_size": 96,
    "max_positions": 512,
    "tied_embeddings": True,
    "sliding_window": 16,
    "sliding_window_pattern": 6,
    "vision_layers": 1,
    "vision_hidden_size": 32,
    "vision_attention_heads": 2,
    "vision_intermediate_size": 64,
    "image_size": 64,
    "patch_size": 16,
    "vision_merge": 2,
}
JOB = {
    "name": "row",
    "model": MODEL,
    "gpu": {"name": "trace", "memory": "8192 GiB"},
    "runtime": "transformers",
    "gradient_accumulation_steps": 1,
    "micro_batch_size": 5,
    "sequence_length": 40,
    "attention": "efficient",
    "hold_outputs": False,
    "max_gradient_norm": None,
    "weight_dtype": None,
}

ROWS: tuple[tuple[dict[str, Any], dict[str, Any], dict[str, int]], ...] = (
    (
        {},
        {
            "precision": "amp-fp16",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "every:2",
            "micro_batch_size": 5,
            "sequence_length": 40,
            "loss": "fused",
            "attention": "efficient",
        },
        {"forward": 2448384, "backward": 3361792, "step": 1987584},
    ),
    (
        {
            "vocabulary_size": 1003,
            "layers": 3,
            "vision_layers": 4,
            "vision_hidden_size": 64,
            "vision_attention_heads": 4,
            "vision_intermediate_size": 128,
            "sliding_window_pattern": 2,
            "patch_size": 8,
        },
        {
            "precision": "fp32",
            "optimizer": "adamw",
            "optimizer_implementation": "foreach",
            "activation_checkpointing": "full",
            "micro_batch_size": 5,
            "sequence_length": 40,
            "loss": "fused",
            "attention": "eager",
        },
        {"forward": 5872128, "backward": 7179264, "step": 6944256},
    ),
    (
        {
            "hidden_size": 96,
            "layers": 3,
            "attention_heads": 6,
            "vision_hidden_size": 60,
            "vision_attention_heads": 3,
            "vision_intermediate_size": 240,
            "head_size": 16,
            "sliding_window_pattern": 3,
            "patch_size": 8,
        },
        {
            "precision": "amp-bf16",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "none",
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "hold_outputs": True,
            "sequence_length": 40,
            "loss": "fused",
            "adapter": {"kind": "lora", "targets": ["q_proj"], "rank": 4, "dropout": 0.0},
            "attention": "efficient",
        },
        {"forward": 2365440, "backward": 2297344, "step": 1200128},
    ),
    (
        {
            "hidden_size": 96,
            "layers": 3,
            "attention_heads": 6,
            "vision_hidden_size": 60,
            "vision_attention_heads": 3,
            "vision_intermediate_size": 240,
            "head_size": 16,
            "sliding_window_pattern": 3,
            "patch_size": 8,
        },
        {
            "precision": "amp-bf16",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "none",
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "hold_outputs": True,
            "sequence_length": 40,
            "loss": "chunked:2",
            "adapter": {
                "kind": "ia3",
                "targets": ["k_proj", "v_proj", "down_proj"],
                "feedforward_targets": ["down_proj"],
            },
            "attention": "efficient",
        },
        {"forward": 2621440, "backward": 2640384, "step": 1179136},
    ),
)


@pytest.mark.truth
@pytest.mark.parametrize(("model", "job", "phases"), ROWS)
def test_phases_are_those_of_the_trace(model: dict[str, Any], job: dict[str, Any], phases: dict[str, int]) -> None:
    assert phases_of(build_job({**JOB, **job, "model": {**MODEL, **model}})) == phases
