"""Tiles of all samples under ZeRO: at each micro-batch they have as many tokens as torch.chunk gives them."""

from __future__ import annotations

import pytest

from tests.job.test_families import small
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.contract


def setup(length: int, tiles: int) -> Setup:
    """Blocks whose activations are little beside those of their MLP."""
    keys = {"model": small("llama", layers=2), "gpu": "h100", "sequence_length": length, "precision": "mixed-bf16"}
    parallel = {"data": 2, "sharding": "zero3"}
    job = build_job({**keys, "parallel": parallel, "tiled_mlp": tiles, "activation_checkpointing": "none"})
    return setup_of(job, "none", accumulates=False)


@pytest.mark.parametrize(("length", "tiles"), [(8, 3), (17, 2), (33, 4), (32, 4), (100, 7)])
def test_what_is_played_once_is_what_is_played_at_each_micro_batch(length: int, tiles: int) -> None:
    of_all = setup(length, tiles)
    quick = replay(of_all, batch=2)
    for micro in (2, 3, 5, 7, 8):
        assert quick.peaks(micro) == replay(of_all, batch=micro, direct=True).peaks(micro), micro
