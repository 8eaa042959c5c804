"""PyTorch's own Adam over the flat fp32 parts of ZeRO, as a DeepSpeed configuration without an optimizer has it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.deepspeed.test_reuse_distance import JOB, PARALLEL
from tests.oracle.compare import phases_of
from vramplan.engines.deepspeed import zero3_gathered, zero3_plan
from vramplan.errors import InputError
from vramplan.job import build_job

ZERO2 = {"data": 2, "sharding": "zero2", "reduce_bucket_size": 9216, "overlap_comm": False}
ZERO3 = {**PARALLEL, "stage3_max_live_parameters": 200_000}
DISTANCE = 100_000


def _job(parallel: dict[str, Any], implementation: str) -> dict[str, Any]:
    given = {"activation_checkpointing": "none", "optimizer_implementation": implementation}
    return {**JOB, **given, "parallel": parallel}


@pytest.mark.truth
@pytest.mark.parametrize(
    ("parallel", "implementation", "traced"),
    [
        (ZERO2, "foreach", (11_838_464, 11_966_464, 12_537_344)),
        (ZERO3, "foreach", (12_296_704, 12_424_704, 12_538_368)),
        (ZERO3, "for-loop", (12_296_704, 12_424_704, 14_624_256)),
    ],
)
def test_a_step_is_as_in_the_trace(
    parallel: dict[str, Any], implementation: str, traced: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rig `zero`, DeepSpeed 0.19.8, with stage3_max_reuse_distance at 100000."""
    monkeypatch.setattr(zero3_gathered, "MAX_REUSE_DISTANCE", DISTANCE)
    zero3_plan.plan_of.cache_clear()
    try:
        assert tuple(phases_of(build_job(_job(parallel, implementation))).values()) == traced
    finally:
        zero3_plan.plan_of.cache_clear()


@pytest.mark.contract
def test_without_zero_a_master_copy_has_one_fused_step() -> None:
    with pytest.raises(InputError, match="one fused step over the master copy"):
        build_job(_job({"data": 2, "sharding": "ddp"}, "foreach"))
