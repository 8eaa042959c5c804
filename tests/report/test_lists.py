"""The reports of check, validate, gpus, models and show."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.report.lines import Line, to_plain, width_of
from vramplan.report.lists import render_check, render_gpus, render_models, render_profile
from vramplan.report.validated import render_validate
from vramplan.results.listings import CheckSummary, ErrorStats, ValidateSummary

REPORTS = {
    "check": (render_check, "check_rows"),
    "validate": (render_validate, "validate_rows"),
    "gpus": (render_gpus, "gpu_rows"),
    "models": (render_models, "model_rows"),
    "profile": (render_profile, "profile"),
}


@pytest.fixture(params=REPORTS)
def report(request: pytest.FixtureRequest) -> Any:
    render: Any
    render, rows = REPORTS[request.param]
    values = request.getfixturevalue(rows)

    def rendered(width: int | None) -> list[Line]:
        lines: list[Line] = render(values, width=width)
        return lines

    return rendered


def test_no_line_is_wider_than_asked(report: Any) -> None:
    for width in range(50, 201):
        assert max(map(width_of, report(width))) <= width


def test_a_pipe_gets_everything_in_ascii(report: Any) -> None:
    text = to_plain(report(None))
    assert text.isascii()
    assert ".." not in text


def test_check_has_one_line_per_job_for_a_script(check_rows: Any) -> None:
    lines = to_plain(render_check(check_rows)).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["PASS", "TIGHT", "FAIL", "ERROR"]
    assert "expected fits; 102.94 GiB too much" in lines[3]
    assert "not computed: see the error" in lines[4]
    assert lines[-1] == "4 jobs: 2 passed, 1 failed, 1 error; 1 tight"


def test_summaries_are_counted(check_rows: Any, validate_rows: Any) -> None:
    assert CheckSummary.of(check_rows) == CheckSummary(total=4, passed=2, failed=1, tight=1, errors=1)
    summary = ValidateSummary.of(validate_rows)
    assert (summary.computed, summary.errors) == (4, 1)
    assert list(summary.per_metric) == ["allocated", "reserved"]
    assert summary.per_runtime["litgpt"].count == 2
    assert (summary.outcomes_right, summary.outcomes_total) == (3, 4)


def test_error_statistics() -> None:
    stats = ErrorStats.of([-0.1, 0.0, 0.05, 0.2])
    assert (stats.count, stats.worst) == (4, 0.2)
    assert stats.median == pytest.approx(0.075)
    assert stats.p90 == pytest.approx(0.17)
    assert stats.bias == pytest.approx(0.0375)
    assert ErrorStats.of([]).median is None


@pytest.mark.snapshot
@pytest.mark.parametrize("name", REPORTS)
def test_lists_at_80_columns(name: str, golden: Any, request: pytest.FixtureRequest) -> None:
    render: Any
    render, rows = REPORTS[name]
    golden(name, to_plain(render(request.getfixturevalue(rows), width=80)))
