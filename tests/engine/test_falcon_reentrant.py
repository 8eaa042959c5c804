"""Reentrant checkpoints of Falcon, whose blocks return None beside their hidden state: phases that a rig traced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.errors import InputError
from vramplan.job import build_job

JOB = {"name": "row", "gpu": {"name": "trace", "memory": "8192 GiB"}, "max_gradient_norm": None, "weight_dtype": None}

ROWS: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    (
        {
            "model": {
                "family": "falcon",
                "transformers_model_type": "falcon",
                "layers": 4,
                "hidden_size": 96,
                "attention_heads": 6,
                "vocabulary_size": 500,
                "key_value_heads": 6,
                "max_positions": 512,
                "qkv_bias": True,
                "positions": "alibi",
                "parallel_residual": False,
                "parameters": 495552,
            },
            "sequence_length": 47,
            "micro_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "precision": "pure-bf16",
            "optimizer": "sgd",
            "optimizer_implementation": "foreach",
            "activation_checkpointing": "every:2",
            "attention": "efficient",
            "runtime": "transformers",
            "hold_outputs": False,
            "dropout": 0.0,
            "checkpoint_reentrant": True,
        },
        {"forward": 2211840, "backward": 3359232, "step": 2009088},
    ),
    (
        {
            "model": {
                "family": "falcon",
                "transformers_model_type": "falcon",
                "layers": 24,
                "hidden_size": 2048,
                "attention_heads": 32,
                "vocabulary_size": 50304,
                "key_value_heads": 32,
                "qkv_bias": True,
                "positions": "alibi",
                "parallel_residual": False,
                "parameters": 1311625216,
            },
            "sequence_length": 2048,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "precision": "amp-bf16",
            "optimizer": "adamw",
            "optimizer_implementation": "fused",
            "activation_checkpointing": "full",
            "attention": "efficient",
            "runtime": "transformers",
            "hold_outputs": False,
            "checkpoint_reentrant": True,
        },
        {"forward": 19970838528, "backward": 23186108928, "step": 20986219008},
    ),
    (
        {
            "model": {
                "family": "falcon",
                "transformers_model_type": "falcon",
                "layers": 4,
                "hidden_size": 96,
                "attention_heads": 6,
                "vocabulary_size": 500,
                "key_value_heads": 6,
                "max_positions": 512,
                "qkv_bias": True,
                "positions": "alibi",
                "parallel_residual": False,
                "parameters": 495552,
            },
            "sequence_length": 100,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "precision": "amp-bf16",
            "optimizer": "adamw",
            "optimizer_implementation": "foreach",
            "activation_checkpointing": "sqrt",
            "attention": "efficient",
            "runtime": "transformers",
            "hold_outputs": False,
            "weight_dtype": "bf16",
            "checkpoint_reentrant": True,
        },
        {"forward": 4541440, "backward": 6145536, "step": 5017600},
    ),
)


@pytest.mark.truth
@pytest.mark.parametrize(("more", "phases"), ROWS)
def test_phases_are_those_of_the_trace(more: dict[str, Any], phases: dict[str, int]) -> None:
    assert phases_of(build_job({**JOB, **more, "model": {"name": "row", **more["model"]}})) == phases


def test_blocks_that_return_weights_are_refused() -> None:
    more = ROWS[0][0]
    with pytest.raises(InputError, match="attention weights too"):
        build_job({**JOB, **more, "model": {"name": "row", **more["model"]}, "attention": "eager"})
