"""The text report: widths, ASCII, rounding, and figures that agree with the JSON."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramplan.report.json import fit_document
from vramplan.report.lines import Span, cells, clean, elide, print_rich, to_plain, width_of, wrap
from vramplan.report.numbers import GIB, apportion, gib_against, gib_down, gib_up, text_of
from vramplan.report.text import paste, render_fit
from vramplan.results import FitResult


def plain(result: FitResult, width: int = 80) -> str:
    return to_plain(render_fit(result, width=width))


def table_of(text: str) -> dict[str, str]:
    """The memory table: name -> GiB."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.split()[:2] == ["component", "GiB"])
    rows = {}
    for line in lines[start + 1 :]:
        if not line:
            break
        if line[2] != " ":
            _, name, size, *_ = line.split()
            rows[name] = size
    return rows


def hundredths(figure: str) -> int:
    return int(figure.replace(".", ""))


@pytest.mark.sweep(6)
def test_no_line_is_wider_than_asked(example: FitResult) -> None:
    for width in range(40, 201):
        lines = render_fit(example, width=width)
        assert max(map(width_of, lines)) <= width
        assert max(map(len, to_plain(lines).splitlines())) <= width


def test_plain_is_ascii_without_colour_or_trailing_spaces(example: FitResult) -> None:
    for width in (40, 80, 100):
        text = plain(example, width)
        assert text.isascii()
        assert all(char.isprintable() or char == "\n" for char in text)
        assert not re.search(r" $", text, re.MULTILINE)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")


def test_plain_and_terminal_have_the_same_columns(example: FitResult) -> None:
    lines = render_fit(example, width=80)
    terminal = io.StringIO()
    print_rich(lines, terminal)
    shown = terminal.getvalue().split("\n")
    assert [cells(line.rstrip()) for line in shown[:-1]] == [len(line) for line in to_plain(lines).split("\n")[:-1]]


def test_a_terminal_without_unicode_gets_ascii(example: FitResult) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    print_rich(render_fit(example, width=80), file)
    file.flush()
    written = file.buffer
    assert isinstance(written, io.BytesIO)
    assert written.getvalue().isascii()


def test_rich_is_not_imported_for_a_pipe() -> None:
    code = "import sys, vramplan.report.text, vramplan.report.lists, vramplan.report.json; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_shown_figures_add_up_and_agree_with_the_document(example: FitResult) -> None:
    rows = table_of(plain(example, 100))
    document = fit_document(example, exit_code=0)
    bytes_of: dict[str, int] = {part["name"]: part["bytes"] for part in document["components"] + document["overheads"]}
    bytes_of |= {
        "allocated": document["peak"]["allocated_bytes"],
        "device": document["peak"]["device_bytes"],
        "usable": document["usable_bytes"],
        "free": document["headroom_bytes"],
    }
    for name, size in bytes_of.items():
        if name in rows:
            assert abs(hundredths(rows[name]) - size * 100 / GIB) <= 2, name
    names = [part["name"] for part in document["components"] if part["bytes"]]
    shown = [hundredths(rows[name]) for name in names if name in rows]
    if len(shown) == len(names):
        assert sum(shown) == hundredths(rows["allocated"])
    extra = sum(hundredths(rows[part["name"]]) for part in document["overheads"] if part["bytes"])
    assert hundredths(rows["allocated"]) + extra == hundredths(rows["device"])
    assert hundredths(rows["device"]) + hundredths(rows["free"]) == hundredths(rows["usable"])


def test_the_first_three_lines_say_it_all(examples: dict[str, FitResult]) -> None:
    assert plain(examples["fits"]).splitlines()[:3] == [
        "FITS  gpt2-xl on v100, amp-fp16, 1024 tokens",
        "  29.58 of 31.74 GiB per GPU, range 27.84 to 31.21, 2.16 GiB free",
        "  micro-batch 2 x 256 accumulation steps = global batch 512, checkpointing sqrt",
    ]
    first, second, third = plain(examples["tight, more likely not"]).splitlines()[:3]
    assert first.startswith("TIGHT, more likely not  ")
    assert "29.58 of 29.00 GiB per GPU" in second
    assert "0.58 GiB too much" in second
    assert "x 64 accumulation steps x 4 GPUs = global batch 512" in third
    first, second, third = plain(examples["does not fit"]).splitlines()[:3]
    assert first.startswith("DOES NOT FIT  ")
    assert "102.94 GiB too much" in second
    assert third.startswith("  judged at micro-batch 1 x 512 accumulation steps")


def test_warnings_are_notes_near_the_top_and_said_once(examples: dict[str, FitResult]) -> None:
    assert plain(examples["fits"]).splitlines()[3].startswith("  note: v100 is the 32 GiB part")
    assert plain(examples["tight, more likely not"]).count("more likely not") == 1


def test_the_chosen_row_of_the_ladder_is_marked(examples: dict[str, FitResult]) -> None:
    marked = [line for line in plain(examples["fits"]).splitlines() if line.startswith("  >")]
    assert [line.split() for line in marked] == [[">", "sqrt", "fits", "2", "256", "29.58", "2", "+33.0%"]]
    assert "\n  >" not in plain(examples["does not fit"])


def test_a_no_names_what_decides_and_the_remedies_as_options(examples: dict[str, FitResult]) -> None:
    text = plain(examples["does not fit"])
    assert "decided by optimizer, 59.83 of the 126.59 GiB needed; 102.94 GiB too much" in text
    assert re.search(r"17\.39  fits +109\.20  --precision pure-bf16 --optimizer adafactor\n", text)
    assert "Why not" not in plain(examples["fits"])
    assert "no single change makes it fit" in plain(examples["does not fit"]._replace(remedies=()))


def test_names_cannot_steer_the_terminal(examples: dict[str, FitResult]) -> None:
    terminal = io.StringIO()
    print_rich(render_fit(examples["huge"], width=80), terminal)
    assert "\x1b" not in terminal.getvalue()
    assert clean("a\x1b[31m\nb") == "a?[31m b"


def test_pasted_options_mean_what_they_meant(example: FitResult) -> None:
    flags = example.recommended.flags or ""
    for width in (40, 41, 57, 80, 100):
        text = to_plain(paste(flags, width))
        done = subprocess.run(["sh", "-c", f"printf '%s\\n' {text}"], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == (shlex.split(flags) or [""])


@given(
    st.integers(0, 200 * GIB),
    st.integers(0, 5 * GIB),
    st.integers(0, 5 * GIB),
    st.integers(1, 200 * GIB),
)
def test_what_fits_is_never_shown_above_what_is_usable(low: int, more: int, most: int, usable: int) -> None:
    device, high = low + more, low + more + most
    for demand in (low, device, high):
        shown = gib_against(demand, usable)
        assert (shown <= gib_down(usable)) == (demand <= usable) or demand == usable + 1
        assert abs(shown - demand * 100 / GIB) <= 1
    assert gib_against(low, usable) <= gib_against(device, usable) <= gib_against(high, usable)


@given(st.lists(st.integers(0, 100 * GIB), max_size=12))
def test_shares_add_up_to_the_total(parts: list[int]) -> None:
    total = gib_up(sum(parts))
    shares = apportion(parts, total)
    assert sum(shares) == total
    assert all(abs(share - part * 100 / GIB) <= 1 for share, part in zip(shares, parts, strict=True))


def test_a_capacity_given_in_gib_is_shown_as_given() -> None:
    for figure in ("31.74", "23.65", "39.6", "80", "5.93"):
        assert float(text_of(gib_down(int(float(figure) * GIB)))) == float(figure)


@given(st.text(), st.integers(1, 30))
def test_elided_text_has_its_width(text: str, width: int) -> None:
    assert cells(elide(text, width)) <= width


@given(st.lists(st.text(alphabet="ab 好x", max_size=40), max_size=5), st.integers(4, 30), st.integers(0, 8))
def test_wrapped_lines_lose_nothing(texts: list[str], width: int, first: int) -> None:
    lines = wrap([Span(text) for text in texts], width, first=min(first, width // 2), rest=2)
    assert all(width_of(line) <= width for line in lines)
    together = "".join(span.text for line in lines for span in line)
    assert together.replace(" ", "") == "".join(texts).replace(" ", "")


@pytest.mark.snapshot
def test_fit_at_80_columns(example: FitResult, golden: Any, request: pytest.FixtureRequest) -> None:
    name: Any = request.node.callspec.id
    golden("fit-" + re.sub(r"\W+", "-", name), plain(example))
