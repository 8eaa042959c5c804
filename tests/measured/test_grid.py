"""The grid for a large card: every job of it can be run, and it has what a comparison needs."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from vramplan.answers.fit import describe
from vramplan.job import read_job_file
from vramplan.measure.refusals import check
from vramplan.planner.decision import decide
from vramplan.results.measure import GPU
from vramplan.values.job import ResolvedJob

GRID = Path(__file__).parent / "grid.yaml"
AT_THE_END = 8  # jobs that an H200 is predicted not to hold
pytestmark = pytest.mark.contract


@cache
def jobs() -> tuple[ResolvedJob, ...]:
    """The jobs on an H200 in place of the card at hand."""
    text = GRID.read_text("utf-8")
    assert text.count("gpu: ") == text.count("gpu: local") == 1
    with TemporaryDirectory() as folder:
        path = Path(folder, "grid.yaml")
        path.write_text(text.replace("gpu: local", "gpu: h200"), "utf-8")
        entries = read_job_file(str(path))
    assert [entry.problems for entry in entries if entry.problems] == []
    return tuple(entry.job for entry in entries if isinstance(entry.job, ResolvedJob))


def test_there_are_enough_jobs_and_each_has_a_name_of_its_own() -> None:
    assert 80 <= len(jobs()) <= 110
    assert [name for name, count in Counter(job.name for job in jobs()).items() if count > 1] == []
    said = [(job.model.name, *job[1:]) for job in (job._replace(name="") for job in jobs())]
    assert [job for job in said if said.count(job) > 1] == []


def test_each_is_run_by_the_command() -> None:
    for job in jobs():
        check(job, GPU)
        assert not [one.key for one in job.assumptions if one.key in ("micro_batch_size", "precision", "optimizer")]


def test_every_kind_of_run_occurs() -> None:
    models = {job.model.name for job in jobs()}
    assert {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-large-uncased", "resnet-50"} <= models
    assert {"llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "vit-large-patch16-224"} <= models
    assert {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"} <= models
    assert {job.precision for job in jobs()} == {"fp32", "amp-fp16", "amp-bf16", "pure-fp16", "pure-bf16"}
    assert {"none", "full", "sqrt", "every:2", "every:3", "every:4"} == {job.activation_checkpointing for job in jobs()}
    assert {job.attention for job in jobs() if job.model.attention_heads} == {"eager", "flash", "efficient"}
    assert {job.optimizer for job in jobs()} == {"adamw", "adam", "sgd", "sgd-momentum", "rmsprop"}
    assert {job.optimizer_implementation for job in jobs()} == {"foreach", "fused", "for-loop"}
    adapters = {(job.model.family, job.adapter.kind) for job in jobs() if job.adapter is not None}
    assert {("llama", "lora"), ("llama", "dora"), ("vit", "lora"), ("resnet", "lora")} <= adapters


def test_the_last_jobs_do_not_fit_an_h200_and_those_before_them_do() -> None:
    verdicts = [describe(decide(job), with_remedies=False).verdict for job in jobs()[-AT_THE_END - 4 :]]
    assert verdicts[4:] == ["does-not-fit"] * AT_THE_END
    assert "does-not-fit" not in verdicts[:4]
