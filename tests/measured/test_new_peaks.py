"""Peaks of sources that were new: what their file says, and what ranges hold of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.measured.later_sets import LATER, Later
from tests.measured.margins import COVERED
from tests.measured.new_peaks import (
    COUNT,
    FIRST,
    JUDGES,
    MARGINS,
    NEW,
    PAGE,
    answered,
    jobs,
    judging,
    page,
    ruled,
    unseen_by_their_margins,
    unseen_sets,
)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("file", "count"),
    [(NEW, COUNT), *((later.file, later.count) for later in LATER)],
)
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
@pytest.mark.parametrize("later", LATER, ids=lambda later: later.ordinal)
def test_each_cause_is_one_of_a_miss(later: Later) -> None:
    outside = [one.row.name for one in answered(later.file) if not one.is_held]
    assert [name for name in later.causes if not any(fnmatchcase(one, name) for one in outside)] == []


@pytest.mark.truth
@pytest.mark.sweep
def test_of_later_sets_more_are_held_than_at_first() -> None:
    """Of all together: a mend may lose a run that two errors had held by chance."""
    today = sum(one.is_held for later in LATER for one in answered(later.file))
    assert today > sum(later.first.held for later in LATER)


@pytest.mark.contract
def test_margins_follow_from_each_set() -> None:
    assert {NEW, *(later.file for later in LATER)} <= set(JUDGES)


@pytest.mark.truth
@pytest.mark.sweep
def test_of_sources_that_are_left_out_nine_of_ten_lie_in_the_ranges_of_the_others() -> None:
    found = unseen_by_their_margins()
    assert sum(len(one.each) for one in found) == len(judging())
    assert sum(one.held for one in found) >= COVERED * len(judging())


@pytest.mark.truth
@pytest.mark.sweep
def test_of_sets_that_are_left_out_whole_nine_of_ten_lie_in_the_ranges_of_the_others() -> None:
    found = unseen_sets()
    assert [one.source for one in found] == list(JUDGES)
    assert sum(len(one.each) for one in found) == len(judging())
    assert sum(one.held for one in found) >= COVERED * len(judging())


@pytest.mark.truth
@pytest.mark.sweep
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.new_peaks"
