"""What the rows of a file ask of the rig that traces them: here, where the rows are read."""

from __future__ import annotations

import pytest

from tests.oracle.compare import jobs, some_jobs
from tests.traces.rigs import BETWEEN_STEPS, RIGS, WITHOUT, recorded_of
from vramplan.errors import InputError
from vramplan.measure import refusals
from vramplan.results.measure import TRACE


@pytest.mark.contract
@pytest.mark.parametrize("file", RIGS["transformers"].files)
def test_rows_that_it_has_no_loop_for_are_named(file: str) -> None:
    """By what its loop refuses; another rig may have them."""
    of_other_rigs = {"quantization", "model"}  # weights of GPTQ, and ChatGLM
    keys: set[str | None] = set()
    for row in some_jobs(file):
        try:
            refusals.check(row, TRACE)
        except InputError as error:
            keys |= {one.key for one in error.problems}
    named = any(f"{file}.json" in where.replace(",", " ").split() for where in WITHOUT.values())
    assert (keys - of_other_rigs != set()) == named, keys


@pytest.mark.contract
@pytest.mark.parametrize("file", BETWEEN_STEPS)
def test_a_row_of_what_runs_between_steps_is_compared_by_its_own_peak(file: str) -> None:
    for row in jobs(file):
        what = "evaluation" if row.eval_batch_size is not None else "generation"
        assert recorded_of(row) == {what: row.case["measured"]["peak_bytes"]}
