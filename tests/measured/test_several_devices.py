"""Published runs on several devices, predicted without knowing their peaks.

The limits are those that the project sets itself for such runs: settings that a source does not print, library versions
of the day and fragmentation are in every error (docs/measured.md has each).
"""

from __future__ import annotations

import pytest

from tests.measured.compare import COUNT, rows, summary
from tests.measured.page import PAGE, page

MEDIAN, NINETIETH = 0.07, 0.20
STEP_MEDIAN = 0.25  # a step is a difference of two figures, and has the errors of both


@pytest.mark.truth
def test_every_run_is_computed_and_near() -> None:
    stats = summary().per_devices["several"]
    assert stats.count == len(rows()) == COUNT
    errors = sorted(abs(row.relative_error or 0.0) for row in rows())
    assert errors[COUNT // 2] <= MEDIAN
    assert errors[9 * COUNT // 10] <= NINETIETH


@pytest.mark.truth
def test_a_switch_moves_the_peak_as_it_did_in_the_run() -> None:
    steps = summary().judged_steps
    assert len(steps) >= 17
    assert [step for step in steps if not step.has_sign] == []
    errors = sorted(abs(step.relative_error) for step in steps)
    assert errors[len(errors) // 2] <= STEP_MEDIAN


@pytest.mark.snapshot
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.page"
