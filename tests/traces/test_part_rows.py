"""The jobs of rows that no job says: what a rig would trace is what the row's figures are answered for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.traces import titan_parts, titan_stages
from tests.traces.composed import predicted
from tests.traces.parts import PARTS, parts_of
from tests.traces.rigs import RIGS, row_names
from vramplan.replay.pipeline.stages import stages_of


def traced(part: dict[str, Any]) -> dict[str, int]:
    """The peaks of the phases of a row."""
    return {phase: part[f"{phase}_bytes"] for phase in ("forward", "backward", "step")}


@pytest.mark.truth
@pytest.mark.parametrize("number", range(18))
def test_the_job_of_a_row_with_shared_sequences_is_answered_as_it_was_traced(number: int) -> None:
    part = parts_of("titan_context_rows")[number]
    assert predicted(titan_parts.job_of(part["row"])) == traced(part)


@pytest.mark.contract
@pytest.mark.parametrize("number", range(11))
def test_the_job_of_a_row_with_stages_has_the_stage_that_the_row_says(number: int) -> None:
    row = parts_of("titan_pipeline_rows")[number]["row"]
    job = titan_stages.job_of(row)
    assert job.split is not None
    found = stages_of(job.split, job.model.layers, job.gradient_accumulation_steps)[titan_stages.number_of(row)]
    assert (found.first, found.last, found.in_flight) == (row["first"], row["last"], row["flight"])
    assert job.model.layers == row["layers"] * row["stages"]


@pytest.mark.contract
def test_every_file_of_parts_is_one_of_a_rig_and_no_file_of_jobs() -> None:
    files = [file for rig in RIGS.values() for file in rig.files]
    assert {file for file in files if file in PARTS} == set(PARTS)
    assert not set(PARTS) & set(row_names())
    for file in PARTS:
        figures = [set(part) - {"row"} for part in parts_of(file)]
        assert figures, file
        assert all(one == figures[0] and one for one in figures), file
