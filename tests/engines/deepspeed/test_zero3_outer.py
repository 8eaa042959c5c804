"""TRUTH: modules with others inside under stage 3, parameters that are read outside of theirs, and weights of few bits.

zero3_outer.json names the rig, its versions and the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.composed import predicted
from vramplan.job import build_job

TRACED = json.loads((Path(__file__).parent / "zero3_outer.json").read_text("utf-8"))["jobs"]


@pytest.mark.truth
@pytest.mark.parametrize("one", TRACED, ids=lambda one: one["name"])
def test_what_a_module_asks_for_is_gathered_with_it(one: dict[str, Any]) -> None:
    assert predicted(build_job(one["keys"])) == one["traced"]
