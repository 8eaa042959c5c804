"""The picture in a terminal: its size, its marks, and that letters and blocks are the same picture."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from tests.timeline.examples import EXAMPLES, LIMIT, small
from vramplan.report.lines import STYLES, print_rich, to_plain, width_of
from vramplan.report.numbers import gib_up, text_of
from vramplan.report.timeline import csv, document, markdown, text
from vramplan.report.timeline_chart import WIDEST, Drawing, chart, default_rows

RULE = re.compile(r" *\+-+\+-+\+-+\+")
WIDTHS = (40, 60, 80, 120, 200, 500)
SIZES = pytest.mark.parametrize("width", WIDTHS)


@pytest.mark.sweep(6)
@SIZES
def test_nothing_is_wider_than_the_terminal(drawing: Drawing, width: int) -> None:
    lines = text(drawing, width=width)
    assert max(map(width_of, lines)) <= width
    assert to_plain(lines).isascii()


@pytest.mark.sweep(6)
@SIZES
def test_letters_and_blocks_are_as_wide_as_each_other(drawing: Drawing, width: int) -> None:
    for line in chart(drawing, width):
        for span in line:
            assert span.plain is None or len(span.plain) == len(span.text)


@pytest.mark.sweep(6)
@SIZES
def test_the_chart_has_its_rows_and_all_its_columns(drawing: Drawing, width: int) -> None:
    lines = to_plain(chart(drawing, min(width, WIDEST))).splitlines()
    rule = next(n for n, line in enumerate(lines) if RULE.fullmatch(line))
    rows = lines[1:rule]
    assert len(rows) == (drawing.rows or default_rows(width))
    edge = lines[rule].index("+")
    assert {line[edge] for line in rows} <= {"|", "+"}
    assert len(rows[0].split("+")) < 4
    assert all(line[:edge].strip() for line in rows if line[edge] == "+")
    assert max(map(len, rows)) <= len(lines[rule]) == min(width, WIDEST)


@pytest.mark.sweep(6)
@SIZES
def test_every_phase_is_there_under_its_columns(drawing: Drawing, width: int) -> None:
    lines = to_plain(chart(drawing, min(width, WIDEST))).splitlines()
    place, rule = next((n, line) for n, line in enumerate(lines) if RULE.fullmatch(line))
    names = lines[place + 1]
    cuts = [match.start() for match in re.finditer(r"\+", rule)]
    assert len(cuts) == 4
    for name, start, end in zip(("forward", "backward", "step"), cuts, cuts[1:], strict=False):
        assert names[start : end + 1].strip().startswith(name[:2])
    assert len(rule) == min(width, WIDEST)


@SIZES
def test_the_arrow_is_above_the_highest_column(width: int) -> None:
    """Down from the arrow there is a guide, then the peak; no letter is in a row above."""
    drawing = Drawing(small(), 16, True)
    lines = to_plain(chart(drawing, min(width, WIDEST))).splitlines()
    (arrow,) = (found.start() for found in re.finditer(r"(?<!\S)v(?!\S)", lines[0]))
    peak = drawing.timeline.history.samples[drawing.timeline.history.peak_sample]
    assert f"peak {text_of(gib_up(peak.allocated_bytes))} GiB" in lines[0]
    tallest = next(number for number, line in enumerate(lines) if number and "T" in line)
    assert lines[tallest][arrow] == "T"
    assert {line[arrow] for line in lines[1:tallest]} <= {"|", "-"}


def test_the_line_of_the_limit_is_where_it_is_and_what_is_left_out_is_said() -> None:
    def said(name: str) -> str:
        return " ".join(to_plain(chart(EXAMPLES[name], 100)).split())

    assert "-- budget 18.00 GiB allocated" in said("fits")
    assert "budget 900.00 GiB allocated: far above this picture" in said("limit far above")
    below = said("limit far below")
    assert "budget 1.00 GiB allocated: below this picture; the axis begins at 7.81 GiB" in below
    lines = to_plain(chart(Drawing(small(scale=2), 40, False), 80)).splitlines()
    peak = small(scale=2).fit.peak.allocated_bytes
    limit = 40 - LIMIT * 40 // peak  # the row, counted from the top
    assert re.fullmatch(r" *[\d.]* [|+]-{74}", lines[limit])
    assert lines[limit - 1].count("A") > 10  # what does not fit is above it


def test_on_a_terminal_every_style_is_known(drawing: Drawing) -> None:
    for line in text(drawing, width=100):
        for span in line:
            assert set(span.style.split("/")) <= set(STYLES)
    out = io.StringIO()
    print_rich(text(drawing, width=100), file=out)
    assert "█" in out.getvalue()


def test_parts_of_a_cell_are_drawn_in_eighths() -> None:
    shown = "".join(span.text for line in chart(Drawing(small(), 30, False), 120) for span in line)
    assert len(set(shown) & set("▁▂▃▄▅▆▇")) >= 5


def test_csv_is_one_row_per_sample(drawing: Drawing) -> None:
    lines = csv(drawing).splitlines()
    made = document(drawing)
    assert lines[0] == "phase,block,operator,allocated_bytes," + ",".join(
        f"{part['name']}_bytes" for part in made["components"]
    )
    assert len(lines) == 1 + len(made["samples"]["phase"])
    for line, size in zip(lines[1:], made["samples"]["allocated_bytes"], strict=True):
        cells = line.split(",")
        assert int(cells[3]) == size == sum(map(int, cells[4:]))


def test_markdown_has_the_chart_and_two_tables(drawing: Drawing) -> None:
    page = markdown(drawing)
    fenced = page.split("```")[1]
    assert fenced.removeprefix("text\n") == to_plain(chart(drawing, 100))
    assert page.count("| --- |") == 2
    assert "| forward |" in page
    assert "\x1b" not in page


@pytest.mark.snapshot
@pytest.mark.parametrize("name", ["fits", "zoomed", "does not fit"])
def test_text(name: str, golden: Any) -> None:
    golden(f"{name.replace(' ', '-')}.txt", to_plain(text(EXAMPLES[name], width=None)))


@pytest.mark.snapshot
def test_markdown_and_csv(golden: Any) -> None:
    drawing = Drawing(small(blocks=2), 8, False)
    golden("timeline.md", markdown(drawing))
    golden("timeline.csv", csv(drawing))
