"""The rigs of training programs: which rows each runs, and the loop that they share."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.oracle.chosen import path_of, written
from tests.oracle.compare import job_called, jobs
from tests.traces import rigs
from tests.traces.composed import check
from tests.traces.parts import PARTS
from tests.traces.programs import MODULES, Program, program_of
from tests.traces.rigs import RIGS
from vramplan.errors import InputError
from vramplan.values.job import ResolvedJob

NOT_RUN = {"litgpt": {"bitsandbytes": 7}}
"""Rows that a rig leaves out, by the key that it names."""


def first_of(file: str) -> ResolvedJob:
    """The job of its first row."""
    return job_called(file, written(path_of(file))[0]["name"])


@pytest.mark.contract
@pytest.mark.sweep
@pytest.mark.parametrize("name", ["torchao", *MODULES])
def test_a_rig_runs_every_row_but_those_that_are_named(name: str) -> None:
    refused: Counter[str] = Counter()
    for file in RIGS[name].files:
        for job in () if file in PARTS else jobs(file):
            assert (program_of(job) is None) == (name == "torchao")
            try:
                check(job)
            except InputError as error:
                refused.update(problem.key or "" for problem in error.problems)
    assert dict(refused) == NOT_RUN.get(name, {})


@pytest.mark.contract
@pytest.mark.parametrize("name", MODULES)
def test_a_program_refuses_what_it_has_no_loop_for(name: str) -> None:
    job = first_of(RIGS[name].files[0])
    for keys in (
        *(() if name in ("torchtitan", "torchtune") else ({"compile": True},)),  # which compile single blocks
        {"packing": True},
        {"padding": "right"},
        {"frozen": ("embeddings",)},
        {"ema": True},
    ):
        with pytest.raises(InputError) as error:
            check(job._replace(**keys))
        assert error.value.problems[0].key in keys
    with pytest.raises(InputError, match="qwen"):
        check(job._replace(model=job.model._replace(transformers_model_type="qwen", name="qwen")))


@pytest.mark.contract
def test_nightly_checks_the_rigs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMPLAN_RIGS", str(tmp_path))
    assert rigs.nightly(1, 0) == 2
    for name, code in (("torchtune", 0), ("nanogpt", 7)):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/said\nexit {code}\n", "utf-8")
        python.chmod(0o755)
    assert rigs.nightly(5, 3) == 1
    said = (tmp_path / "said").read_text("utf-8").splitlines()
    assert [line.split("tests.traces ")[1] for line in said] == [
        f"rows {name} --rows 5 --seed 3" for name in ("torchtune", "nanogpt")
    ]


@pytest.mark.contract
def test_of_a_repository_no_more_is_taken_than_a_rig_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[str]] = []

    def run(words: list[str], **_: object) -> SimpleNamespace:
        said.append(words)
        return SimpleNamespace(returncode=0)

    monkeypatch.setenv("VRAMPLAN_RIGS", str(tmp_path))
    monkeypatch.setattr(rigs.subprocess, "run", run)
    for name, taken in (("modded-nanogpt", list(rigs.LOGS.values())), ("nanogpt", [])):
        source = RIGS[name].source
        assert source is not None
        assert rigs.set_up(RIGS[name], "copy") == 0
        assert said[-2][-2:] == ["copy", str(tmp_path / name / "source")]
        assert said[-1][-len(taken) - 1 :][0] == ("--" if taken else source[1])
        assert said[-1][len(said[-1]) - len(taken) :] == taken


@pytest.mark.contract
def test_a_source_is_not_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    assert rigs.set_up(RIGS["torchtune"], "somewhere") == 2
    assert "--source" in capsys.readouterr().out


class Noted(Program):
    """A program that notes in which order its parts are called."""

    def __init__(self, job: ResolvedJob) -> None:
        super().__init__(job)
        self.said: list[str] = []

    def forward(self) -> tuple[Any, Any]:
        self.said.append("logits")
        return self.Result(self.said), 6.0

    def backward(self, loss: Any) -> None:
        self.said.append(f"gradients of {loss}")

    def step(self) -> None:
        self.said.append("weights")

    class Result:
        """Logits, which note when they go."""

        def __init__(self, said: list[str]) -> None:
            self.said = said

        def __del__(self) -> None:
            self.said.append("gone")


@pytest.mark.closed_form
@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_logits_live_as_long_as_the_job_says(holds: bool, steps: int) -> None:
    job = first_of(next(iter(MODULES)))._replace(hold_outputs=holds, gradient_accumulation_steps=steps)
    program = Noted(job)
    program.iterate(lambda phase: program.said.append(phase))
    of_backward = ["backward", f"gradients of {6.0 / steps}"]
    last = [*of_backward, "gone"] if holds else ["gone", *of_backward]
    assert program.said == ["forward", "logits", *last] * steps + ["step", "weights"]
