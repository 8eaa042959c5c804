"""Keys and values that a model returns while it is trained: rows that were traced, and when they are held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.compare import phases_of
from vramplan.errors import InputError
from vramplan.job import build_job

ROWS = json.loads(Path(__file__).with_name("returned_caches.json").read_text("utf-8"))


@pytest.mark.parametrize("row", ROWS["jobs"], ids=lambda row: row["name"])
def test_peaks_are_those_of_the_trace(row: dict[str, Any]) -> None:
    assert phases_of(build_job({**ROWS["defaults"], **row["job"]})) == row["phase_peaks"]


FULL = {"activation_checkpointing": "full"}


@pytest.mark.parametrize("keys", [{"use_cache": False}, FULL, {**FULL, "pytorch_version": "2.1"}])
def test_a_cache_costs_memory_with_the_outputs_alone(keys: dict[str, Any]) -> None:
    """Beside a checkpoint it is empty, but for the tuples of Transformers before 4.36."""
    row = next(one for one in ROWS["jobs"] if one["job"]["hold_outputs"])
    job = {**ROWS["defaults"], **row["job"], **keys}
    without = phases_of(build_job({**job, "use_cache": False}))
    held = phases_of(build_job(job))
    let_go = phases_of(build_job({**job, "hold_outputs": False, "hold_outputs_until": None}))
    assert held["backward"] >= max(without["backward"], let_go["backward"])
    assert (held == without) is ("pytorch_version" not in keys)


@pytest.mark.parametrize("keys", [{"loss": "dpo"}, {"compile": True}])
def test_what_returns_no_cache_is_refused(keys: dict[str, Any]) -> None:
    row = next(one for one in ROWS["jobs"] if not one["job"]["hold_outputs"])
    with pytest.raises(InputError, match="use_cache"):
        build_job({**ROWS["defaults"], **row["job"], "activation_checkpointing": "full", **keys})
