"""TRUTH: LISA beside what it leaves as it is, parts that are in no block and a step in backward.

lisa_beside.json names the rig, its versions and the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.composed import predicted
from vramplan.job import build_job

TRACED = json.loads((Path(__file__).parent / "lisa_beside.json").read_text("utf-8"))["jobs"]


@pytest.mark.truth
@pytest.mark.parametrize("one", TRACED, ids=lambda one: one["name"])
def test_lisa_goes_with_it(one: dict[str, Any]) -> None:
    assert predicted(build_job(one["keys"])) == one["traced"]
