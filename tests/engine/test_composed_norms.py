"""`nn.RMSNorm` before it was one kernel (PyTorch 2.9), under a training program that calls it."""

from __future__ import annotations

import pytest

from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form
SHARED = {"data": 8, "sharding": "fsdp"}
JOB = {"model": "llama-3-8b", "gpu": "h100", "runtime": "torchtitan", "sequence_length": 512, "micro_batch_size": 2}


def setup(**keys: object) -> Setup:
    job = build_job({**JOB, "global_batch_size": 16, "parallel": SHARED, **keys})
    return setup_of(job, "none", accumulates=False)


def test_a_release_before_the_kernel_saves_more() -> None:
    new, old = setup(pytorch_version="2.9"), setup(pytorch_version="2.8")
    assert (new.composed_norms, old.composed_norms) == (False, True)
    assert not setup().composed_norms
    tokens, shape = 2 * 512, new.model
    norms = 2 * shape.layers + 1
    kept = replay(old).saved_bytes(2) - replay(new).saved_bytes(2)
    # A copy in fp32, and the normalised input of the product with the weight in place of the input of the kernel.
    assert kept == norms * tokens * shape.hidden_size * 4
