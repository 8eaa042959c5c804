"""The derivation of one small job, for tests of what is said about it."""

from __future__ import annotations

from functools import cache

from tests.cli.running import ABLE, TINY
from vramplan.answers.explanation import explain
from vramplan.job import build_job
from vramplan.results.explain import Explanation


@cache
def small() -> Explanation:
    """Five blocks, the first three in one checkpoint, with one tensor followed."""
    job = {
        "model": TINY,
        "gpu": {"name": "small", "memory": "8 GiB", **ABLE},
        "sequence_length": 64,
        "micro_batch_size": 2,
        "global_batch_size": 4,
        "activation_checkpointing": "layers:[[0,2]]",
    }
    return explain(build_job(job), tensor="block.4.self_attn.q_proj.mm")
