"""Unsloth's loss of whole logits: what it keeps, by the shapes of its kernel."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.job import build_job

TOKENS, VOCABULARY = 1024, 128_256
JOB: dict[str, Any] = {
    "model": {
        "family": "llama",
        "layers": 2,
        "hidden_size": 256,
        "attention_heads": 4,
        "intermediate_size": 512,
        "vocabulary_size": VOCABULARY,
        "max_positions": TOKENS,
        "tied_embeddings": True,
    },
    "gpu": "t4",
    "precision": "amp-fp16",
    "weight_dtype": "fp16",
    "adapter": {"kind": "lora", "rank": 8},
    "sequence_length": TOKENS,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "activation_checkpointing": "full",
    "allocator": "estimate",
}


def peak_of(**more: Any) -> int:
    return answer(build_job(JOB | more)).peak.allocated_bytes


@pytest.mark.closed_form
@pytest.mark.parametrize("micro", [1, 3])
def test_a_batch_adds_logits_in_half_and_the_copy_in_fp32_that_accelerate_returns(micro: int) -> None:
    one = peak_of(runtime="unsloth", loss="standard", micro_batch_size=micro)
    more = peak_of(runtime="unsloth", loss="standard", micro_batch_size=micro + 1)
    logits = TOKENS * VOCABULARY
    assert logits * 6 < more - one < logits * 6.1


@pytest.mark.closed_form
def test_the_loss_of_transformers_needs_more_and_the_one_with_the_head_less() -> None:
    standard = peak_of(runtime="unsloth", loss="standard")
    assert peak_of(runtime="unsloth") < standard < peak_of(runtime="transformers", loss="standard")
