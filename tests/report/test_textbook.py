"""Textbook answers, batch advice and walk-throughs: how they look, their widths, and that sums add up."""

from __future__ import annotations

import csv as reader
import io
import re
from typing import Any

import pytest
import yaml

from tests.report.textbook_answers import ADVICE, ADVISED, TEXTBOOK, WALK
from vramplan.report import csv, markdown, walkthrough
from vramplan.report import yaml as written
from vramplan.report.advice import advice_rows
from vramplan.report.json import fit_document
from vramplan.report.lines import to_plain, width_of
from vramplan.report.text import render_fit


def plain(result: Any, width: int = 80) -> str:
    return to_plain(render_fit(result, width=width))


@pytest.mark.snapshot
@pytest.mark.parametrize(("name", "result"), [("fit-textbook", TEXTBOOK), ("fit-advice", ADVISED)])
def test_fit(name: str, result: Any, golden: Any) -> None:
    golden(f"{name}.txt", plain(result))
    golden(f"{name}.md", markdown.render_fit(result))


@pytest.mark.snapshot
def test_walkthrough(golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walkthrough, "__version__", "0.0.0")
    golden("walkthrough.txt", to_plain(walkthrough.details(WALK, width=None)))
    golden("walkthrough-short.txt", to_plain(walkthrough.text(WALK, width=None)))
    golden("walkthrough.md", walkthrough.markdown(WALK))
    golden("walkthrough.csv", walkthrough.csv(WALK))
    golden("walkthrough.yaml", written.dumps(walkthrough.document(WALK)))


def test_no_line_is_wider_than_asked() -> None:
    for width in range(40, 130):
        for lines in (
            render_fit(TEXTBOOK, width=width),
            render_fit(ADVISED, width=width),
            walkthrough.text(WALK, width=width),
            walkthrough.details(WALK, width=width),
        ):
            assert max(map(width_of, lines)) <= width
            assert to_plain(lines).isascii()


def test_a_textbook_answer_shows_gb_and_nothing_that_a_tool_would_show() -> None:
    for text in (plain(TEXTBOOK), markdown.render_fit(TEXTBOOK)):
        assert "32.13" in text
        assert "34.36" in text
        assert "torch.cuda" not in text
        assert "nvidia-smi" not in text
        assert "range " not in text
        assert "None" not in text
    assert "textbook: " not in plain(TEXTBOOK)
    assert all(part["basis"].startswith("textbook: ") for part in fit_document(TEXTBOOK, exit_code=0)["components"])


def test_without_advice_there_is_none() -> None:
    bare = ADVISED._replace(advice=None)
    assert fit_document(bare, exit_code=0)["advice"] is None
    assert "advice" not in plain(bare)
    assert "advice" not in markdown.render_fit(bare)
    assert csv.render_fit(bare) == csv.render_fit(ADVISED)


def test_advice_says_the_same_in_text_and_markdown() -> None:
    text, page = " ".join(plain(ADVISED).split()), markdown.render_fit(ADVISED)
    for key, said in advice_rows(ADVICE):
        said = said.replace("×", "x")
        assert said in text
        assert f"- {key}: " in page
    for figure in ("0.5657", "3.2", "5000", "LAMB", "no_sync()", "batch normalisation sees", "99.6%"):
        assert figure in text


def test_the_columns_of_a_walkthrough_add_up() -> None:
    for step in WALK.steps:
        *rows, total = walkthrough.rows_of(step)
        assert sum(row.textbook or 0 for row in rows) == total.textbook
        assert sum(row.replay or 0 for row in rows) == total.replay


def test_a_walkthrough_shows_both_batches_where_they_differ() -> None:
    text = " ".join(to_plain(walkthrough.details(WALK, width=80)).split())
    sides = ("32 x 1 accumulation step x 8 GPUs = 256 by the textbook", "8 x 8 accumulation steps x 8 GPUs")
    assert f"micro-batch {sides[0]}, micro-batch {sides[1]}" in text
    assert text.count("by the textbook, micro-batch") == 1


def test_formats_of_a_walkthrough_say_what_json_says() -> None:
    document = walkthrough.document(WALK)
    assert yaml.safe_load(written.dumps(document)) == document
    rows = list(reader.DictReader(io.StringIO(walkthrough.csv(WALK))))
    for step in document["steps"]:
        for side, total in (("textbook", "total_bytes"), ("replay", "allocated_bytes")):
            mine = [row for row in rows if (row["step"], row["side"]) == (str(step["step"]), side)]
            found = {row["component"]: int(row["bytes"]) for row in mine}
            assert found.pop("total") == step[side][total] == sum(found.values())
            assert found == {part["name"]: part["bytes"] for part in step[side]["components"]}
            assert {row["verdict"] for row in mine} == {step[side]["verdict"]}
    text = to_plain(walkthrough.details(WALK, width=100))
    assert re.search(r"2  \+ mixed precision\s+56\.5\s+-37%\s+does-not-fit", text)
