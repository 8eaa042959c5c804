"""What a figure does not depend on: words beside a case, names, and the memory of the card."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from tests.measured.compare import DIED, HERE, PEAKS
from vramplan.answers.fit import describe
from vramplan.errors import InputError
from vramplan.job import build_job, read_job_file
from vramplan.options.words import CASE_KEYS
from vramplan.planner.decision import decide
from vramplan.report.json import fit_document
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob

FILES = (*PEAKS, DIED)
JOB, MODEL = "another-job-of-no-meaning", "another-model-of-no-meaning"  # no word of an answer is like them
CASE = {
    "measured": {"peak_bytes": 1, "metric": "device", "outcome": "oom"},
    "source": {"title": "a run with PyTorch 1.6", "where": "PyTorch 1.6", "quote": "bitsandbytes 0.41.1"},
    "use": ["peak", "fit"],
    "confidence": "high",
    "ladder": "one",
    "notes": "PyTorch 1.6, bitsandbytes 0.41.1. Run in January 2022. modded-nanogpt (2024-12-17)",
}
"""Words that a reader of cases could be tempted by."""

RENAMED = ("modded-nanogpt (2024-12-17)", "gpt2-xl", "llama-3-8b")
GIB = 2**30
CARDS = (1 * GIB, 12 * GIB, 79 * GIB, 80 * GIB, 500 * GIB)


def answered(job: ResolvedJob, *, fast: bool = True) -> FitResult:
    """An answer with the allocator as the job says; `fast`: without what it would take to fit."""
    return describe(decide(job, whole_ladder=not fast), with_remedies=not fast)


def without_words(job: dict[str, Any], name: str = JOB) -> dict[str, Any]:
    """The same job with no key of a case, another name, and another name of a described model."""
    plain = {key: value for key, value in job.items() if key not in CASE_KEYS}
    if isinstance(job.get("model"), dict):
        plain["model"] = {**job["model"], "name": MODEL}
    return {**plain, "name": name}


def shown(result: FitResult, *names: str | None) -> str:
    """The JSON of an answer with each of these names replaced: those of the model and the job."""
    text = json.dumps(fit_document(result, exit_code=0), ensure_ascii=False)
    for name, word in zip(names, ("<job>", "<model>"), strict=False):
        if name:
            text = text.replace(json.dumps(name, ensure_ascii=False)[1:-1], word)
    return text


def read(folder: Path, cases: Iterable[dict[str, Any]], defaults: dict[str, Any]) -> Iterator[ResolvedJob]:
    file = folder / "cases.yaml"
    file.write_text(yaml.safe_dump({"version": 1, "defaults": defaults, "jobs": list(cases)}), "utf-8")
    for entry in read_job_file(file):
        assert isinstance(entry.job, ResolvedJob), entry.problems
        yield entry.job


@cache
def published(file: str) -> tuple[ResolvedJob, ...]:
    """The cases of a file, estimated."""
    found = []
    for entry in read_job_file(HERE / f"{file}.yaml"):
        assert isinstance(entry.job, ResolvedJob), entry.problems
        found.append(entry.job._replace(allocator=None))
    return tuple(found)


@pytest.mark.sweep
@pytest.mark.closed_form
@pytest.mark.parametrize("file", FILES)
def test_published_runs_are_predicted_from_no_word_beside_them(file: str, tmp_path: Path) -> None:
    raw = yaml.safe_load((HERE / f"{file}.yaml").read_text("utf-8"))
    cases = raw["jobs"]
    assert any(key in case for case in cases for key in CASE_KEYS)
    defaults = {key: value for key, value in raw.get("defaults", {}).items() if key not in CASE_KEYS}
    bare = read(tmp_path, [without_words(case, f"{JOB}-{number:03}") for number, case in enumerate(cases)], defaults)
    for case, job, other in zip(cases, published(file), bare, strict=True):
        assert other.case == {}
        inline = case["model"].get("name") if isinstance(case["model"], dict) else None
        mine = shown(answered(job), job.name, inline)
        assert shown(answered(other._replace(allocator=None)), other.name, MODEL if inline else None) == mine, job.name


@pytest.mark.sweep(16)
@pytest.mark.closed_form
@settings(deadline=None, max_examples=12)
@given(jobs(), st.sampled_from(RENAMED))
def test_a_drawn_job_is_answered_from_no_word_beside_it(raw: dict[str, Any], renamed: str) -> None:
    told = {**raw, "model": {**raw["model"], "name": renamed}, "name": f"{renamed} with PyTorch 1.6", **CASE}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "jobs.json"
        file.write_text(json.dumps({"version": 1, "jobs": [without_words(raw), told]}), "utf-8")
        bare, beside = read_job_file(file)
    plain, other = bare.job, beside.job
    if not isinstance(plain, ResolvedJob) or not isinstance(other, ResolvedJob):
        refused = ([(one.key or "").split(".", 2)[2:] for one in entry.problems] for entry in (bare, beside))
        assert next(refused) == next(refused) != []
        return
    assert other.case["notes"] == CASE["notes"]
    first, second = answered(plain, fast=False), answered(other, fast=False)
    assert (first.peak, first.components, first.verdict) == (second.peak, second.components, second.verdict)
    assert shown(first, JOB, MODEL) == shown(second, f"{renamed} with PyTorch 1.6", renamed)


def figures(job: ResolvedJob) -> tuple[Any, ...]:
    """All that an answer says of the memory of a job whose schedule and checkpoints are pinned."""
    result = answered(job)
    return result.peak, result.components, result.overheads, result.stages


def on(job: ResolvedJob, capacity_bytes: int) -> ResolvedJob:
    return job._replace(gpu=job.gpu._replace(capacity_bytes=capacity_bytes), gpu_free_bytes=None)


@pytest.mark.sweep
@pytest.mark.closed_form
@pytest.mark.parametrize("file", FILES)
def test_published_runs_need_as_much_on_a_card_of_any_size(file: str) -> None:
    seen = 0
    for job in published(file):
        if job.micro_batch_size is None or job.activation_checkpointing is None:
            continue
        pinned = job._replace(gradient_accumulation_steps=job.gradient_accumulation_steps or 1, reserve_bytes=0)
        if job.gradient_accumulation_steps is None:
            size = job.micro_batch_size * job.data_parallel_size
            pinned = pinned._replace(global_batch_size=size)
        seen += 1
        first, *others = (figures(on(pinned, size)) for size in (CARDS[0], CARDS[-2], CARDS[-1]))
        assert others == [first, first], job.name
    assert seen


@pytest.mark.sweep(4)
@pytest.mark.closed_form
@settings(deadline=None, max_examples=30)
@given(jobs(), st.sampled_from(["none", "full", "sqrt"]), st.integers(1, 40), st.integers(1, 3))
def test_a_drawn_job_needs_as_much_on_a_card_of_any_size(
    raw: dict[str, Any], checkpoints: str, micro: int, steps: int
) -> None:
    pinned = {key: value for key, value in raw.items() if key != "global_batch_size"}
    pinned |= {"activation_checkpointing": checkpoints, "micro_batch_size": micro, "gradient_accumulation_steps": steps}
    found = []
    for size in CARDS:
        try:
            job = build_job({**pinned, "gpu": {**raw["gpu"], "memory": f"{size} B"}})
        except InputError as error:
            found.append(tuple(one.key for one in error.problems))
            continue
        assert isinstance(job, ResolvedJob)
        found.append(figures(job))
    assert found == found[:1] * len(CARDS)
