"""Published peaks beside predictions: shared by the tests and by the generator of docs/measured.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from vramplan.answer import answer
from vramplan.job import read_job_file
from vramplan.rows import ValidateRow, ValidateSummary
from vramplan.validation import compare

SEVERAL_DEVICES = Path(__file__).with_name("several_devices.yaml")
COUNT = 45


@cache
def rows() -> tuple[ValidateRow, ...]:
    """Every case, computed."""
    found = []
    for entry in read_job_file(SEVERAL_DEVICES):
        assert entry.job is not None, entry.problems
        found.append(compare(answer(entry.job), entry.job))
    return tuple(found)


@cache
def summary() -> ValidateSummary:
    """How good they are."""
    return ValidateSummary.of(rows())
