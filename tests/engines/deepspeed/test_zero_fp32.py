"""TRUTH: ZeRO over fp32 weights, of which its optimizer has a copy all the same.

zero_fp32.json names the rig, its versions and the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.composed import predicted
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay

TRACED = json.loads(Path(__file__).with_name("zero_fp32.json").read_text("utf-8"))["jobs"]


@pytest.mark.truth
@pytest.mark.parametrize("one", TRACED, ids=lambda one: one["name"])
def test_peaks_are_those_of_the_trace(one: dict[str, Any]) -> None:
    assert predicted(build_job(one["keys"])) == one["traced"]


@pytest.mark.parametrize("stage", ["zero1", "zero2", "zero3"])
def test_the_copy_is_as_large_as_a_part_of_the_weights(stage: str) -> None:
    """Adam has two more: so many bytes of each parameter are shared among the devices."""
    found = next(
        one
        for one in TRACED
        if one["name"] == f"{stage} " + {"zero1": "phi3", "zero2": "bloom", "zero3": "olmo"}[stage]
    )
    job = build_job({**found["keys"], "parallel": {"data": 4, "sharding": stage}, "offload": []})
    record = replay(setup_of(job, "none", False))
    sizes: dict[str, int] = {}
    for state in record.states:
        sizes[state.category] = sizes.get(state.category, 0) + state.at(2)
    part = 4 * record.parameters // 4
    assert sizes["master"] == pytest.approx(part, rel=0.01, abs=4096)
    assert sizes["optimizer"] == pytest.approx(2 * part, rel=0.01, abs=8192)  # and flags of the kernel
