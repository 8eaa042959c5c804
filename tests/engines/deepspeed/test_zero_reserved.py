"""What an allocator makes of the gradients that earlier micro-steps left under stage 1 of ZeRO."""

from __future__ import annotations

import pytest

from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.run import reserve
from vramplan.replay.recorder import rounded
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


@pytest.mark.closed_form
@pytest.mark.parametrize("compiled", [False, True])
def test_stage_1_has_the_gradients_of_earlier_micro_steps_in_compiled_steps_too(compiled: bool) -> None:
    """They are there before the graph runs, so nothing of it is merged with them."""
    job = build_job(
        {
            "model": "gpt2",
            "gpu": "h100",
            "runtime": "transformers",
            "precision": "mixed-bf16",
            "micro_batch_size": MICRO,
            "gradient_accumulation_steps": 4,
            "compile": compiled,
            "parallel": {"data": 4, "sharding": "zero1"},
        }
    )
    record = replay(setup_of(job, "none", accumulates=True), batch=MICRO, direct=True)
    sizes = record.sizes(MICRO)
    begins = next(at for at, name in record.phases if name == "backward")
    born = [one for one in record.events[:begins] if one >= 0]
    there = sum(sizes[one] for one in born if record.categories[one] == "gradients")
    assert 0 <= there - sum(rounded(2 * one) for one in sizes_of_gpt2()) < 16 << 10  # and numbers of the loss
    assert min(sizes) >= 0


def sizes_of_gpt2() -> list[int]:
    """Elements of each weight of GPT-2, whose head is its table of tokens."""
    width, layers = 768, 12
    block = [width] * 4 + [3 * width**2, 3 * width, width**2, width, 4 * width**2, 4 * width, 4 * width**2, width]
    return [50257 * width, 1024 * width, *block * layers, width, width]
