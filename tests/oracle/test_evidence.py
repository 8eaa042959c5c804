"""CONTRACT. What was traced together is counted from the rows as they are, and the look-up reads what was counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.chosen import row_files
from tests.oracle.compare import ROWS, some_jobs
from tests.oracle.evidence import DATA, PAGE, counted, data, page
from vramplan.replay.techniques.evidence import RELIES_ON, TOUCHES, EvidenceGap, missing, rows_of, untraced
from vramplan.replay.techniques.vocabulary import techniques_of

pytestmark = pytest.mark.contract


@pytest.mark.sweep
def test_the_data_and_the_page_are_current() -> None:
    assert DATA.read_text() == data(), "stale: run python -m tests.oracle.evidence"
    assert PAGE.read_text() == page(), "stale: run python -m tests.oracle.evidence"


def test_no_file_of_rows_is_left_out() -> None:
    assert {path.stem for path in row_files()} >= {*ROWS, "compile", "compile_more", "evaluation", "generation"}


@pytest.mark.sweep
def test_the_lookup_finds_each_count() -> None:
    for what, rows in counted().items():
        found = rows_of(*what)
        assert found.number == len(rows)
        assert set(found.files) == {file for file, _ in rows}


@pytest.mark.sweep
def test_what_is_declared_is_a_technique_of_some_row() -> None:
    assert all(rows_of(one).number for one in [*RELIES_ON, *TOUCHES])


@pytest.mark.parametrize("path", row_files(), ids=lambda path: path.stem)
def test_no_traced_row_has_a_gap_or_is_refused(path: Path) -> None:
    assert some_jobs(path.stem)
    for job in some_jobs(path.stem):
        assert untraced(job) == ()
        assert missing(job) == (), (job.name, techniques_of(job))
        for one in techniques_of(job):
            assert "None" not in EvidenceGap(one, None).sentence(job)
