"""The words of a step's time."""

from __future__ import annotations

import pytest

from tests.cli.running import run
from tests.report.roofline_answer import TIME, small_roofline
from vramplan.report import roofline
from vramplan.report.lines import to_plain
from vramplan.report.summary import MOST_LINES, render_summary
from vramplan.report.times import PART_WORDS, rate_text, seconds_text, time_words
from vramplan.results import FitResult
from vramplan.results.time import DATA, PARTS

pytestmark = pytest.mark.contract


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0000421, "0.04 ms"),
        (0.0842, "84.2 ms"),
        (0.9996, "1.00 s"),
        (1.357, "1.36 s"),
        (120.4, "120 s"),
        (605.0, "10 min"),
        (7300.0, "2.0 h"),
    ],
)
def test_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_rates() -> None:
    assert rate_text(TIME) == "512 tokens/s per GPU"
    assert rate_text(TIME._replace(tokens_per_second_per_device=None)) == "1.00 samples/s per GPU"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_the_summary_says_it_in_a_line_or_two(examples: dict[str, FitResult], width: int) -> None:
    for result in examples.values():
        lines = render_summary(result._replace(time=TIME), width=width)
        text = to_plain(lines)
        assert len(lines) <= MOST_LINES
        assert max(map(len, text.splitlines())) <= max(width, 40)
        if width >= 80:
            assert all(part in " ".join(text.split()) for part in time_words(TIME))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_tables_fit_their_width(examples: dict[str, FitResult], width: int) -> None:
    text = to_plain(roofline.text(small_roofline(examples["fits"]), width=width))
    assert max(map(len, text.splitlines())) <= width
    assert "mm" in text


def test_every_part_of_a_step_has_words() -> None:
    assert set(PART_WORDS) == {*PARTS, DATA}
    ran = run("fit", "-m", "resnet-50", "-g", "a100", "--micro-batch", "8", "--data-rate", "1 MB/s", "--details")
    assert "waiting for data 9" in ran.out
