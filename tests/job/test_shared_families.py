"""What every model type has in common where devices share its states: an answer, or a refusal that says why."""

from __future__ import annotations

from typing import Any

import pytest

from tests.job.test_families import small
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

ON_HOST = {"offload": ["parameters", "gradients", "optimizer"]}
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": {"data": 4, "sharding": "ddp"}},
    "fsdp": {"parallel": {"data": 4, "sharding": "fsdp"}},
    "fsdp-grad-op": {"parallel": {"data": 4, "sharding": "fsdp-grad-op"}, **ON_HOST},
    "hsdp": {"parallel": {"data": 4, "sharding": "hsdp:2"}},
    "fsdp1": {"parallel": {"data": 4, "sharding": "fsdp", "fsdp_version": 1}},
    "fsdp1-host": {"parallel": {"data": 4, "sharding": "fsdp-grad-op", "fsdp_version": 1}, **ON_HOST},
    "zero1": {"parallel": {"data": 4, "sharding": "zero1"}},
    "zero2": {"parallel": {"data": 4, "sharding": "zero2"}, "offload": ["optimizer"]},
    "zero3": {"parallel": {"data": 4, "sharding": "zero3"}},
}


@pytest.mark.sweep(12)
@pytest.mark.contract
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_every_type_is_answered_however_it_is_shared_or_refused_with_a_key(
    model_type: str, way: str, accumulates: bool
) -> None:
    """Of every type, each way: one of them whose blocks are one layer, as ALBERT's, was once an internal error."""
    keys = {"model": small(model_type), "gpu": "a100-80gb", "micro_batch_size": 2, "activation_checkpointing": "none"}
    try:
        job = build_job({**keys, "gradient_accumulation_steps": 1 + accumulates, **WAYS[way]})
    except InputError as error:
        refused = [problem.key for problem in error.problems]
    else:
        refused = []
    if refused:
        assert all(refused)
        return
    assert isinstance(job, ResolvedJob)
    record = replay(setup_of(job, "none", accumulates))
    assert all(peak > 0 for peak in record.peaks(2).values())
