"""The published tables are those that the program gives today."""

from __future__ import annotations

import re

import pytest

from tests.oracle.accuracy import CLOSING, INTRODUCTION, PAGE, TRACES, section
from tests.oracle.compare import COMPILED, FILES

pytestmark = pytest.mark.truth


def published() -> dict[str, str]:
    """The page, cut before the heading of each file."""
    first, *others = re.split(r"^(?=## \w+\.json: )", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    last = others.pop()
    end = last.index(CLOSING.partition("\n")[0])
    return {"": first, **{one[3:].partition(".")[0]: one for one in (*others, last[:end])}, "end": last[end:]}


@pytest.mark.parametrize("file", [*FILES, *COMPILED])
def test_the_section_of_a_file_is_current(file: str) -> None:
    assert published()[file] == section(file) + "\n", "stale: run python -m tests.oracle.accuracy"


def test_the_page_has_every_file_in_order() -> None:
    found = published()
    assert list(found) == ["", *FILES, *COMPILED, "end"]
    assert found["end"] == CLOSING
    assert found[""].startswith(INTRODUCTION)  # what is between them: tests/measured/test_published.py
    assert found[""].endswith(TRACES + "\n")
