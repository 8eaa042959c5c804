"""FSDP on a single device, which Accelerate and the Trainer wrap as they wrap on several."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job

JOB = {"model": "gpt2", "gpu": "a100", "sequence_length": 256, "micro_batch_size": 1, "precision": "fsdp-bf16"}
PARAMETERS = 124_439_808


def job_of(**parallel: Any) -> Any:
    return build_job({**JOB, "parallel": parallel})


@pytest.mark.closed_form
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sharding", ["fsdp", "fsdp-grad-op"])
def test_one_device_has_every_shard(sharding: str, version: int) -> None:
    """Weights in fp32 and two moments: 4 + 8 bytes of each."""
    found = {one.name: one.bytes for one in answer(job_of(data=1, sharding=sharding, fsdp_version=version)).components}
    assert found["weights"] == pytest.approx(4 * PARAMETERS, rel=0.01)
    assert found["optimizer"] == pytest.approx(8 * PARAMETERS, rel=0.01)


@pytest.mark.contract
def test_it_is_said_that_nobody_traced_it() -> None:
    assert any("never traced on one device" in sentence for sentence in job_of(data=1, sharding="fsdp").composed)


@pytest.mark.contract
@pytest.mark.parametrize(
    "parallel", [{"sharding": "fsdp"}, {"data": 1, "sharding": "ddp"}, {"data": 1, "sharding": "hsdp:1"}]
)
def test_what_needs_several_devices_says_so(parallel: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs several devices"):
        job_of(**parallel)
