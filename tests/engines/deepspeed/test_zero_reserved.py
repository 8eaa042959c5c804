"""What an allocator makes of the gradients that earlier micro-steps left under stage 1 of ZeRO."""

from __future__ import annotations

import pytest

from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.run import reserve
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

MICRO = 2
LLAMA = {
    "family": "llama",
    "task": "lm",
    "layers": 6,
    "hidden_size": 1024,
    "attention_heads": 8,
    "key_value_heads": 8,
    "intermediate_size": 2816,
    "vocabulary_size": 8000,
    "max_positions": 512,
    "tied_embeddings": False,
}


def test_gradients_of_earlier_micro_steps_are_as_many_as_there_are_weights() -> None:
    """One tensor that stands for all of them would leave a hole of that size, as nothing else fills it.

    A quarter more than is allocated is for the holes between buckets; the hole would be 0.6 of it.
    """
    job = build_job(
        {
            "model": LLAMA,
            "gpu": "h100",
            "runtime": "deepspeed",
            "sequence_length": 256,
            "micro_batch_size": MICRO,
            "gradient_accumulation_steps": 4,
            "activation_checkpointing": "full",
            "parallel": {"data": 4, "sharding": "zero1"},
        }
    )
    last, first = (replay(setup_of(job, "full", accumulates), unrolled=True) for accumulates in (True, False))
    # before the first step makes states where the bucket was, which then needs another segment
    assert reserve(last, MICRO, first=first).first_reserved_bytes < 1.25 * last.peak_bytes(MICRO)
