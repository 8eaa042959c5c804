"""The published tables are those that the program gives today."""

from __future__ import annotations

import re

import pytest

from tests.measured import new_peaks
from tests.measured import page as measured
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
from tests.oracle.chosen import path_of, written
from tests.oracle.compare import COMPILED, FILES

pytestmark = pytest.mark.truth

STALE = "stale: run python -m tests.oracle.accuracy --published"


def sections() -> dict[str, str]:
    """The page, cut before the heading of each file."""
    first, *others = re.split(r"^(?=## \w+\.json: )", PAGE_OF_TRACES.read_text("utf-8"), flags=re.MULTILINE)
    last = others.pop()
    end = last.index(CLOSING.partition("\n")[0])
    return {"": first, **{one[3:].partition(".")[0]: one for one in (*others, last[:end])}, "end": last[end:]}


@pytest.mark.sweep
@pytest.mark.parametrize("file", [*FILES, *COMPILED])
def test_the_section_of_a_file_is_current(file: str) -> None:
    assert sections()[file] == section(file) + "\n", "stale: run python -m tests.oracle.accuracy"


@pytest.mark.parametrize("file", FILES)
def test_the_section_of_a_file_counts_its_rows_and_all_are_exact(file: str) -> None:
    """As `test_every_row_is_exact` holds them to be; what the groups have, the whole suite looks at."""
    count = len(written(path_of(file)))
    heading, _, table = sections()[file].partition("\n\n")
    assert heading == f"## {file}.json: {count} rows"
    groups: dict[str, list[list[str]]] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[1:2] == ["rows"]:
            group = groups.setdefault(cells[0], [])
        elif len(cells) > 1 and not cells[0].startswith("--"):
            group.append(cells)
    assert [cells[1:3] for cells in groups["all"]] == [[str(count), str(count)]]
    for name, lines in groups.items():
        assert sum(int(cells[1]) for cells in lines) == count, name
        assert all(cells[1] == cells[2] and {*cells[3:]} == {"0.0000%"} for cells in lines), name


def test_the_page_has_every_file_in_order() -> None:
    found = sections()
    assert list(found) == ["", *FILES, *COMPILED, "end"]
    assert found["end"] == CLOSING
    assert found[""] == OF_TRACES + "\n"


def test_the_first_page_is_current_and_what_readme_says_of_published_runs() -> None:
    assert PAGE.read_text("utf-8") == page(PAGE_OF_TRACES.read_text("utf-8")), STALE
    assert f"\n{measured.in_one_line()}; " in README.read_text("utf-8"), STALE
    assert f"). {new_peaks.in_one_line()} (" in README.read_text("utf-8"), STALE


@pytest.mark.sweep
def test_readme_and_the_page_of_published_runs_are_current() -> None:
    """With the project's own runs."""
    assert README.read_text("utf-8") == readme(), STALE
    assert " published runs from which no figure was chosen" in README.read_text("utf-8"), "the line is gone"
    assert PAGE_OF_PUBLISHED.read_text("utf-8") == published(), STALE


def test_the_first_page_begins_with_one_short_table() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = next(number for number, line in enumerate(lines[first:]) if not line.startswith("|"))
    assert first < 10
    assert rows <= 20
