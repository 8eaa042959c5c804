"""Masks of OLMo 3, whose code makes one for blocks with a window and one for the others: phases that a rig traced."""

from __future__ import annotations

from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.job import build_job

MODEL = {
    "transformers_model_type": "olmo3",
    "name": "row",
    "layers": 5,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 4,
    "intermediate_size": 96,
    "vocabulary_size": 500,
    "max_positions": 512,
    "sliding_window": 64,
    "sliding_window_pattern": 4,
}
JOB = {
    "name": "row",
    "model": MODEL,
    "gpu": {"name": "trace", "memory": "8192 GiB"},
    "runtime": "transformers",
    "hold_outputs": False,
    "max_gradient_norm": None,
    "optimizer": "adamw",
    "optimizer_implementation": "foreach",
    "activation_checkpointing": "none",
    "gradient_accumulation_steps": 1,
    "micro_batch_size": 2,
    "weight_dtype": "fp32",
}
FUSED = {"precision": "amp-bf16", "attention": "efficient", "padding": "right"}
ROWS: tuple[tuple[dict[str, Any], dict[str, int]], ...] = (
    ({**FUSED, "sequence_length": 33}, {"forward": 5087232, "backward": 5134336, "step": 4820480}),
    ({**FUSED, "sequence_length": 100}, {"forward": 8746496, "backward": 8891392, "step": 4823552}),
    (
        {"precision": "fp32", "attention": "eager", "padding": "right", "sequence_length": 33},
        {"forward": 5104640, "backward": 5234688, "step": 4820480},
    ),
    (
        {"precision": "fp32", "attention": "eager", "sequence_length": 100},
        {"forward": 10622976, "backward": 11019264, "step": 4821504},
    ),
)


@pytest.mark.truth
@pytest.mark.parametrize(("more", "phases"), ROWS)
def test_phases_are_those_of_the_trace(more: dict[str, Any], phases: dict[str, int]) -> None:
    assert phases_of(build_job({**JOB, **more})) == phases
