"""The allocator of a run: simulated beside it, and given to its process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run, valid, write_jobs
from tests.measure.runners import Runner
from tests.measure.test_command import JOB, cases
from vramplan.answers.fit import describe
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.measure import apart, processes
from vramplan.measure.allocator import VARIABLES, environment_for, said, simulated
from vramplan.planner.decision import decide
from vramplan.values.allocator import DEFAULT

EXPANDABLE = "expandable_segments:True"
FIRST, SECOND = VARIABLES
pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, Any, Runner]]:
    """The row of a job, its case, and the runner."""

    def measure(*words: str, **keys: Any) -> tuple[Any, Any, Runner]:
        made = Runner()
        monkeypatch.setattr(apart, "run_apart", made)
        monkeypatch.setattr(apart, "check_installed", lambda: None)
        output = tmp_path / "measured.yaml"
        jobs = write_jobs(tmp_path / "grid.yaml", {**JOB, **keys})
        answer = run("measure", "--grid", jobs, "-o", output, "--format", "json", *words)
        assert answer.code == 0, answer
        return valid("measure", answer.document)["results"][0], cases(output)[0], made

    return measure


def reserved(allocator: str) -> int:
    peak = describe(decide(build_job({**JOB, "allocator": allocator})), with_remedies=False).peak
    return peak.reserved_bytes


def test_what_is_reserved_is_simulated_where_the_job_says_nothing(ran: Any) -> None:
    row, case, made = ran()
    assert row["predicted"]["reserved_bytes"] == reserved("simulate") != reserved("estimate")
    assert case["allocator"] == made.asked[0].job["allocator"] == "simulate"


def test_the_settings_of_the_environment_are_simulated(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECOND, EXPANDABLE)
    row, case, _ = ran()
    assert row["predicted"]["reserved_bytes"] == reserved(EXPANDABLE)
    assert case["allocator"] == EXPANDABLE


def test_a_trace_has_no_allocator(ran: Any) -> None:
    row, case, _ = ran("--trace")
    assert row["predicted"]["reserved_bytes"] == reserved("estimate")
    assert case["allocator"] == "estimate"


def test_the_job_has_its_own_settings_whatever_the_environment_says(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FIRST, EXPANDABLE)
    row, _, made = ran(allocator="max_split_size_mb:64")
    assert row["predicted"]["reserved_bytes"] == reserved("max_split_size_mb:64")
    process = environment_for(made.asked[0].job["allocator"])
    assert [process.get(name) for name in VARIABLES] == ["max_split_size_mb:64"] * 2


@pytest.mark.parametrize(
    ("given", "allocator", "expected"),
    [
        ({}, "simulate", {}),
        ({FIRST: EXPANDABLE}, "simulate", {}),
        ({FIRST: EXPANDABLE}, "estimate", {FIRST: EXPANDABLE}),
        ({SECOND: f"{EXPANDABLE},pinned_use_background_threads:True"}, EXPANDABLE, None),
        ({}, EXPANDABLE, dict.fromkeys(VARIABLES, EXPANDABLE)),
    ],
    ids=["nothing", "the defaults", "left open", "said already", "its own"],
)
def test_the_process_gets_the_settings_of_its_job(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], allocator: str, expected: dict[str, str] | None
) -> None:
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    process = environment_for(allocator)
    assert {name: process[name] for name in VARIABLES if name in process} == (given if expected is None else expected)


def test_the_first_variable_wins_as_in_pytorch() -> None:
    assert said({FIRST: "a", SECOND: "b"}) == (FIRST, "a")
    assert said({FIRST: "", SECOND: "b"}) == (SECOND, "b")
    assert said({}) is None


def test_settings_that_are_not_modelled_are_refused_by_their_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    job = build_job(JOB)
    assert simulated(job).allocator == DEFAULT
    monkeypatch.setenv(SECOND, "backend:cudaMallocAsync")
    with pytest.raises(InputError, match=f"{SECOND}.*not modelled") as raised:
        simulated(job)
    assert f"unset {SECOND}" in str(raised.value)


def test_only_a_real_run_has_the_allocator_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def process(*_: Any, env: dict[str, str], **__: Any) -> Any:
        found.append(env.get(FIRST))
        raise InterruptedError

    monkeypatch.setattr(processes.subprocess, "run", process)
    monkeypatch.setattr(apart, "used_bytes", lambda: None)
    for how in ("gpu", "trace"):
        with pytest.raises(InterruptedError):
            apart.run_apart(apart.Request({"allocator": EXPANDABLE}, how, 1))
    assert found == [EXPANDABLE, None]
