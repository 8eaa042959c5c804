"""Peaks of families that had few, and the rule by which a family counts as measured."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import pytest

from tests.measured.families import (
    COUNT,
    FAMILIES,
    FIRST,
    LEAST_PAGES,
    LEAST_PEAKS,
    MANY_PEAKS,
    PAGE,
    Evidence,
    evidence,
    page,
)
from tests.measured.new_peaks import answered, jobs
from vramplan.replay import models
from vramplan.replay.models import peaks_published


@pytest.mark.contract
def test_each_says_where_it_is_from_and_what_is_printed_there() -> None:
    found = jobs(FAMILIES)
    assert len({job.name for job in found}) == len(found) == COUNT
    for job in found:
        assert {"title", "where", "date", "quote"} <= set(job.case["source"]), job.name
        assert job.case["confidence"] in ("high", "medium", "low")


@pytest.mark.contract
def test_a_family_is_measured_by_peaks_pages_and_what_is_held() -> None:
    enough = Evidence("any", LEAST_PEAKS, LEAST_PAGES, LEAST_PEAKS)
    assert enough.is_measured
    assert not enough._replace(peaks=LEAST_PEAKS - 1).is_measured
    assert not enough._replace(pages=LEAST_PAGES - 1).is_measured
    assert not enough._replace(held=LEAST_PEAKS - 1).is_measured
    assert Evidence("any", MANY_PEAKS, 1, MANY_PEAKS).is_measured
    assert Evidence("any", 20, LEAST_PAGES, 18).is_measured


@pytest.mark.truth
@pytest.mark.sweep
def test_the_flags_of_families_follow_from_published_peaks() -> None:
    found = evidence()
    named = (one.name for one in iter_modules(models.__path__))
    families = (name for name in named if hasattr(import_module(f"{models.__name__}.{name}"), "FORWARD"))
    flagged = {name for name in families if peaks_published(name)}
    assert flagged == {name for name, one in found.items() if one.is_measured}


@pytest.mark.truth
@pytest.mark.sweep
def test_more_are_held_than_at_first() -> None:
    assert sum(one.is_held for one in answered(FAMILIES)) > FIRST["held"]


@pytest.mark.truth
@pytest.mark.sweep
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.measured.families"
