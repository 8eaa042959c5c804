"""TRACED TRUTH. Peaks of an evaluation: one forward pass with its loss in eval mode under `torch.no_grad()`."""

from __future__ import annotations

import pytest

from tests.oracle.compare import jobs as every_job
from tests.oracle.compare import setup_of
from vramplan.catalog.config_classes import MODEL_TYPES, ModelType
from vramplan.catalog.models import list_models
from vramplan.job import build_job
from vramplan.job.losses.loss import SMOOTHED_TASKS
from vramplan.replay.evaluation import evaluation, generation_bytes
from vramplan.replay.models.capable import evaluates, generates
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.truth

ROWS = {"evaluation": 60, "evaluation_more": 115, "pairs_beside": 70}
GENERATIONS = {"generation": (20, 0.85), "generation_more": (40, 0.7), "pairs_beside": (22, 0.8)}
"""Rows, and the least share of the traced peak: eager attention and grouped queries make copies that the bound leaves
out, and among the second ones are many of both. DoRA, which makes several matrices as large as a weight for each token,
is held to the bound alone."""


def jobs(file: str) -> list[ResolvedJob]:
    return [job for job in every_job(file) if job.eval_batch_size is not None]


def generations(file: str) -> list[ResolvedJob]:
    return [job for job in every_job(file) if job.generation_batch_size is not None]


@pytest.mark.parametrize("direct", [False, True], ids=["quick", "every block"])
@pytest.mark.parametrize("file", list(ROWS))
def test_every_row_is_exact(file: str, direct: bool) -> None:
    wrong = {}
    for job in jobs(file):
        batch, setup = job.eval_batch_size, setup_of(job)
        assert batch is not None
        record = evaluation(setup, replay(setup), batch=batch if direct else min(batch, 2), direct=direct)
        if record.peak_bytes(batch) != job.case["measured"]["peak_bytes"]:
            wrong[job.name] = record.peak_bytes(batch)
    assert wrong == {}


@pytest.mark.sweep
def test_the_rows_cover_what_is_modelled() -> None:
    assert {file: len(jobs(file)) for file in ROWS} == ROWS
    beside = jobs("pairs_beside")
    assert {job.adapter.kind for job in beside if job.adapter is not None} == {"lora", "dora", "ia3"}
    assert {job.quantization for job in beside} == {None, "nf4", "int8"}
    assert any(job.frozen for job in beside)
    assert any(job.half_weights for job in beside)
    assert any(job.padding == "right" for job in beside)
    found = [job for file in ROWS for job in jobs(file)]
    evaluated = {kind.family for kind in MODEL_TYPES.values() if evaluates(kind.family)}
    traced = {job.model.family for job in found}
    assert traced <= evaluated
    for kind in MODEL_TYPES.values():  # the rest has the same head, and the answer says that it was never traced
        if kind.family in evaluated - traced and kind.tasks[0] in SMOOTHED_TASKS:
            assert is_said("eval_batch_size", kind, eval_batch_size=2)
    assert {job.model.task for job in found} == {"lm", "mlm", "cls", "seq2seq", "image"}
    assert {job.label_smoothing > 0 for job in found} == {True, False}
    assert {job.eval_batch_size == 1 for job in found} == {True, False}


@pytest.mark.parametrize("file", list(GENERATIONS))
def test_a_generation_needs_at_least_what_is_said(file: str) -> None:
    """Against traced peaks of making the last token, with a cache of all tokens before it."""
    shares = []
    for job in generations(file):
        batch, length, setup = job.generation_batch_size, job.generation_length, setup_of(job)
        assert batch is not None
        assert length is not None
        said = generation_bytes(setup, replay(setup), batch, length)
        assert said <= job.case["measured"]["peak_bytes"], job.name
        if job.adapter is None or job.adapter.kind != "dora":
            shares.append(said / job.case["measured"]["peak_bytes"])
    count, least = GENERATIONS[file]
    assert len(shares) == count
    assert min(shares) > least


@pytest.mark.sweep
def test_the_rows_of_generations_cover_every_family_that_may_generate() -> None:
    """All families share a few classes: a cache that grows, and a window that bounds it."""
    traced = {job.model.family for file in GENERATIONS for job in generations(file)}
    for kind in MODEL_TYPES.values():
        if _generates(kind) and kind.family not in traced:
            assert is_said("generation_batch_size", kind, generation_batch_size=2, generation_length=16)


def is_said(key: str, kind: ModelType, **keys: int) -> bool:
    """Whether an answer says that something was never traced with the code of a model type."""
    named = next((profile for profile in list_models() if profile.shape().family == kind.family), None)
    described = next(word for word, one in MODEL_TYPES.items() if one is kind)
    has_images = "image_size" in kind.defaults if named is None else named.shape().image_size is not None
    tokens = 4096 if has_images else 64  # those of an image are counted in
    length = {} if kind.tasks[0] == "image" else {"sequence_length": tokens}
    model = {"family": described} if named is None else named.name
    job = build_job({"model": model, "gpu": "h200", **length, **keys})
    return any(said.startswith(f"{key} ") and "was never traced with" in said for said in job.composed)


def _generates(kind: ModelType) -> bool:
    return kind.tasks[0] in ("lm", "seq2seq") and generates(kind.family)
