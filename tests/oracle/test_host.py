"""TRACED TRUTH. What a step with offloaded activations leaves in the memory of the host."""

from __future__ import annotations

import pytest

from tests.answers import answer
from tests.oracle.compare import OFFLOADED, setup_of, some_jobs
from vramplan.replay.host import host_of
from vramplan.replay.offload import pinned_bytes
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.truth

SCALARS_BYTES = 64


def offloaded(file: str) -> list[ResolvedJob]:
    return [job for job in some_jobs(file) if job.offload_activations]


DEVICE_ALONE = {
    *("images", "tiles", "more_families", "liger", "fused_lora", "linear", "decoders", "tiled", "block_kinds", "met"),
    *("tiled_mlp", "tiled_mlp_shared"),
    *("sharded_spaces", "state_spaces", "short_convolutions"),
    *("distilbert", "dbrx", "deberta_v2", "electra", "whisper", "modernbert", "other_families", "other_optimizers"),
    *("optimizers_more", "optimizers_more_shared"),
}
"""Files whose traces did not look at the memory of the host."""


@pytest.mark.parametrize("file", sorted(OFFLOADED.keys() - DEVICE_ALONE))
def test_what_lies_on_the_host_is_exact(file: str) -> None:
    """The packed tensors of torch.autograd.graph.save_on_cpu, and the powers of two that pinned blocks are."""
    assert offloaded(file)
    for job in offloaded(file):
        batch, trace = job.micro_batch_size, job.case["trace"]
        assert batch is not None
        host = replay(setup_of(job), batch=min(batch, 2)).host
        assert sum(one.at(batch) * one.copies for one in host) == trace["host_bytes"], job.name
        assert pinned_bytes(host, batch) == trace["pinned_bytes"], job.name


def test_what_crosses_the_link_is_exact() -> None:
    """Of what is saved and of the states, in all micro-steps; norms and flags cross too, which are scalars."""
    hosted = [job for file in ("flat_host", "flat_adapters") for job in some_jobs(file) if job.offload]
    assert hosted
    for job in (*offloaded("host_activations"), *hosted):
        batch, steps, trace = job.micro_batch_size, job.gradient_accumulation_steps, job.case["trace"]
        assert batch is not None
        found = host_of(replay(setup_of(job), batch=min(batch, 2)), job, batch, steps)
        assert 0 <= trace["to_host_bytes"] - found.to_host_bytes <= SCALARS_BYTES, job.name
        assert 0 <= trace["to_device_bytes"] - found.to_device_bytes <= SCALARS_BYTES, job.name


def test_the_answer_has_the_figures_of_the_host() -> None:
    job = offloaded("checkpoints")[0]
    found = answer(job).host
    assert found is not None
    assert (found.saved_bytes, found.pinned_bytes) == tuple(
        job.case["trace"][key] for key in ("host_bytes", "pinned_bytes")
    )
