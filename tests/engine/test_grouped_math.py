"""TRUTH: attention by PyTorch's plain operators: asked for, and where grouped queries leave no other kernel.

grouped_math.json names the rig, its versions and the command.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.composed import predicted
from vramplan.job import build_job

TRACED = json.loads((Path(__file__).parent / "grouped_math.json").read_text("utf-8"))["jobs"]


@pytest.mark.truth
@pytest.mark.parametrize("one", TRACED, ids=lambda one: one["name"])
def test_scores_are_stored_as_they_were_traced(one: dict[str, Any]) -> None:
    assert predicted(build_job(one["keys"])) == one["traced"]
