"""FlashAttention 1 of PyTorch 2.0 and 2.1: the replay for every micro-batch is what one micro-batch alone gives."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

pytestmark = pytest.mark.contract
GPT2 = {
    "family": "gpt2",
    "task": "lm",
    "layers": 3,
    "hidden_size": 256,
    "attention_heads": 8,
    "intermediate_size": 1024,
    "vocabulary_size": 4096,
    "max_positions": 1024,
}
VIT = {
    "family": "torchvision_vit",
    "task": "image",
    "layers": 3,
    "hidden_size": 256,
    "attention_heads": 8,
    "intermediate_size": 1024,
    "max_positions": 197,
    "image_size": 224,
    "patch_size": 16,
    "channels": 3,
    "classes": 10,
}
RUN = {"gpu": "a100-40gb", "precision": "pure-bf16", "optimizer": "adamw", "gradient_accumulation_steps": 1}


@pytest.mark.parametrize(
    "keys",
    [
        {"model": VIT, "runtime": "pytorch", "micro_batch_size": 130},  # the ends of so many have another block
        {"model": GPT2, "sequence_length": 1024, "micro_batch_size": 8},
        {"model": GPT2, "sequence_length": 1024, "micro_batch_size": 8, "activation_checkpointing": "full"},
        {"model": GPT2, "sequence_length": 1024, "micro_batch_size": 8, "compile": True},
        {"model": GPT2, "sequence_length": 250, "micro_batch_size": 8, "transformers_version": "4.48"},
    ],
    ids=str,
)
def test_a_quick_replay_is_the_literal_one(keys: dict[str, Any]) -> None:
    job = build_job({**RUN, "activation_checkpointing": "none", "pytorch_version": "2.0", **keys})
    assert job.first_flash
    setup, micro = setup_of(job, job.activation_checkpointing or "none", accumulates=False), keys["micro_batch_size"]
    assert replay(setup, batch=2).peaks(micro) == replay(setup, batch=micro, direct=True).peaks(micro)
