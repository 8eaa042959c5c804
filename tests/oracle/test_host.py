"""TRACED TRUTH. What a step with offloaded activations leaves in the memory of the host."""

from __future__ import annotations

import pytest

from tests.oracle.compare import FILES, rows, setup_of
from vramplan.answer import answer
from vramplan.memory.iteration import replay
from vramplan.tape.offload import pinned_bytes

pytestmark = [pytest.mark.truth, pytest.mark.xdist_group("rows")]


def test_what_lies_on_the_host_is_exact() -> None:
    """The packed tensors of torch.autograd.graph.save_on_cpu, and the powers of two that pinned blocks are."""
    found = 0
    for row in (row for file in FILES for row in rows(file) if row.job.offload_activations):
        batch, trace = row.job.micro_batch_size, row.job.case["trace"]
        assert batch is not None
        host = replay(setup_of(row.job), batch=1 if batch == 1 else 2).host
        assert sum(one.at(batch) * one.copies for one in host) == trace["host_bytes"], row.job.name
        assert pinned_bytes(host, batch) == trace["pinned_bytes"], row.job.name
        found += 1
    assert found >= 70


def test_the_answer_has_the_figures_of_the_host() -> None:
    row = next(row for row in rows("checkpoints") if row.job.offload_activations)
    found = answer(row.job).host
    assert found is not None
    assert (found.saved_bytes, found.pinned_bytes) == tuple(
        row.job.case["trace"][key] for key in ("host_bytes", "pinned_bytes")
    )
