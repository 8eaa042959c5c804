"""Which block stands for all where BAdam trains them in turns."""

from __future__ import annotations

import pytest

from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

KEYS = {"model": "llama-3.2-1b", "gpu": "a100-80gb", "precision": "pure-bf16", "sequence_length": 64}


def peaks(strategy: str, **more: object) -> dict[str, int]:
    keys = {**KEYS, **more, "micro_batch_size": 2, "gradient_accumulation_steps": 1}
    job = build_job({**keys, "activation_checkpointing": strategy, "max_gradient_norm": None})
    return dict(replay(setup_of(job, strategy, accumulates=False)).peaks(2))


@pytest.mark.closed_form
@pytest.mark.parametrize("strategy", ["none", "full"])
def test_no_other_block_needs_more(strategy: str) -> None:
    """The activations that are there when backward begins are those of a model of which that block alone is trained."""
    turned = peaks(strategy, trained_blocks="badam")
    for others in ("layers.1-15", "layers.0-14", "layers.0-6,layers.8-15"):
        frozen = ["embeddings", "norms", *others.split(",")]
        assert turned["forward"] > peaks(strategy, frozen=frozen)["forward"]
