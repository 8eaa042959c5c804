"""Peaks of sources that were new: what their file says, and what ranges hold of them."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from tests.measured.margins import COVERED
from tests.measured.new_peaks import (
    COUNT,
    COUNT_FIFTH,
    COUNT_FOURTH,
    COUNT_SECOND,
    COUNT_THIRD,
    FIFTH,
    FIRST,
    FIRST_FIFTH,
    FIRST_FOURTH,
    FIRST_SECOND,
    FIRST_THIRD,
    FOURTH,
    JUDGES,
    MARGINS,
    NEW,
    PAGE,
    SECOND,
    THIRD,
    WHY,
    WHY_FIFTH,
    WHY_FOURTH,
    WHY_THIRD,
    answered,
    jobs,
    judging,
    page,
    ruled,
    unseen_by_their_margins,
)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("file", "count"),
    [(NEW, COUNT), (SECOND, COUNT_SECOND), (THIRD, COUNT_THIRD), (FOURTH, COUNT_FOURTH), (FIFTH, COUNT_FIFTH)],
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
@pytest.mark.parametrize(
    ("file", "first", "causes"),
    [
        (SECOND, FIRST_SECOND, WHY),
        (THIRD, FIRST_THIRD, WHY_THIRD),
        (FOURTH, FIRST_FOURTH, WHY_FOURTH),
        (FIFTH, FIRST_FIFTH, WHY_FIFTH),
    ],
)
def test_of_later_sets_no_fewer_are_held_than_at_first_and_each_cause_is_one_of_a_miss(
    file: str, first: dict[str, float], causes: dict[str, str]
) -> None:
    found = answered(file)
    outside = [one.row.name for one in found if not one.is_held]
    assert len(found) - len(outside) >= first["held"]
    assert [name for name in causes if not any(fnmatchcase(one, name) for one in outside)] == []


@pytest.mark.contract
def test_margins_follow_from_each_set() -> None:
    assert {NEW, SECOND, THIRD, FOURTH, FIFTH} <= set(JUDGES)


@pytest.mark.truth
@pytest.mark.sweep
def test_of_sources_that_are_left_out_nine_of_ten_lie_in_the_ranges_of_the_others() -> None:
    found = unseen_by_their_margins()
    assert sum(len(one.each) for one in found) == len(judging())
    assert sum(one.held for one in found) >= COVERED * len(judging())


@pytest.mark.truth
@pytest.mark.sweep
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.new_peaks"
