"""The published tables are those that the program gives today."""

from __future__ import annotations

import re

import pytest

from tests.oracle.accuracy import (
    CLOSING,
    OF_TRACES,
    PAGE,
    PAGE_OF_PUBLISHED,
    PAGE_OF_TRACES,
    README,
    page,
    published,
    readme,
    section,
)
from tests.oracle.compare import COMPILED, FILES

pytestmark = pytest.mark.truth


def sections() -> dict[str, str]:
    """The page, cut before the heading of each file."""
    first, *others = re.split(r"^(?=## \w+\.json: )", PAGE_OF_TRACES.read_text("utf-8"), flags=re.MULTILINE)
    last = others.pop()
    end = last.index(CLOSING.partition("\n")[0])
    return {"": first, **{one[3:].partition(".")[0]: one for one in (*others, last[:end])}, "end": last[end:]}


@pytest.mark.parametrize("file", [*FILES, *COMPILED])
def test_the_section_of_a_file_is_current(file: str) -> None:
    assert sections()[file] == section(file) + "\n", "stale: run python -m tests.oracle.accuracy"


def test_the_page_has_every_file_in_order() -> None:
    found = sections()
    assert list(found) == ["", *FILES, *COMPILED, "end"]
    assert found["end"] == CLOSING
    assert found[""] == OF_TRACES + "\n"


def test_the_first_page_and_that_of_published_runs_are_current() -> None:
    stale = "stale: run python -m tests.oracle.accuracy --published"
    assert PAGE.read_text("utf-8") == page(PAGE_OF_TRACES.read_text("utf-8")), stale
    assert README.read_text("utf-8") == readme(), stale
    assert " published runs from which no figure was chosen" in README.read_text("utf-8"), "the line is gone"
    assert PAGE_OF_PUBLISHED.read_text("utf-8") == published(), stale


def test_the_first_page_begins_with_one_short_table() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = next(number for number, line in enumerate(lines[first:]) if not line.startswith("|"))
    assert first < 10
    assert rows <= 20
