"""Peaks of sources that were new: what their file says, and what ranges hold of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.measured.new_peaks import (
    COUNT,
    COUNT_SECOND,
    FIRST,
    FIRST_SECOND,
    MARGINS,
    NEW,
    PAGE,
    SECOND,
    WHY,
    answered,
    jobs,
    page,
    ruled,
)


@pytest.mark.contract
@pytest.mark.parametrize(("file", "count"), [(NEW, COUNT), (SECOND, COUNT_SECOND)])
def test_each_says_where_it_is_from_and_what_is_printed_there(file: str, count: int) -> None:
    found = jobs(file)
    assert len({job.name for job in found}) == len(found) == count
    for job in found:
        assert {"title", "where", "date", "quote"} <= set(job.case["source"]), job.name
        assert job.case["measured"]["peak_bytes"] > 0
        assert job.case["confidence"] in ("high", "medium", "low")


@pytest.mark.truth
@pytest.mark.sweep
def test_nine_of_ten_lie_in_ranges_whose_margins_follow_from_them() -> None:
    found = answered()
    assert sum(one.is_held for one in found) >= 0.9 * COUNT > FIRST["held"]
    assert ruled() == MARGINS


@pytest.mark.truth
@pytest.mark.sweep
def test_of_the_second_set_more_are_held_than_at_first_and_each_cause_is_one_of_a_miss() -> None:
    outside = [one.row.name for one in answered(SECOND) if not one.is_held]
    assert COUNT_SECOND - len(outside) > FIRST_SECOND["held"]
    assert [name for name in WHY if not any(fnmatchcase(one, name) for one in outside)] == []


@pytest.mark.truth
@pytest.mark.sweep
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.new_peaks"
