"""Peaks of sources that were new: what their file says, and what ranges hold of them."""

from __future__ import annotations

import pytest

from tests.measured.margins import ALONE, SEVERAL
from tests.measured.new_peaks import COUNT, FIRST, PAGE, answered, jobs, page, ruled
from vramplan.planner import bands


@pytest.mark.contract
def test_each_says_where_it_is_from_and_what_is_printed_there() -> None:
    found = jobs()
    assert len({job.name for job in found}) == len(found) == COUNT
    for job in found:
        assert {"title", "where", "date", "quote"} <= set(job.case["source"]), job.name
        assert job.case["measured"]["peak_bytes"] > 0
        assert job.case["confidence"] in ("high", "medium", "low")


@pytest.mark.truth
@pytest.mark.sweep
def test_nine_of_ten_lie_in_ranges_whose_margins_follow_from_them() -> None:
    found = answered()
    assert sum(one.is_held for one in found) >= 0.9 * COUNT > FIRST["held"]
    assert ruled() == {ALONE: bands.ALONE, SEVERAL: bands.SEVERAL}


@pytest.mark.truth
@pytest.mark.sweep
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.new_peaks"
