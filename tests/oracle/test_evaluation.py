"""TRACED TRUTH. Peaks of an evaluation: one forward pass with its loss in eval mode under `torch.no_grad()`."""

from __future__ import annotations

import pytest

from tests.oracle.compare import HERE, setup_of
from vramplan.job import read_job_file
from vramplan.memory.evaluation import evaluation, generation_bytes
from vramplan.memory.iteration import replay
from vramplan.models import head_losses
from vramplan.spec import Job

pytestmark = pytest.mark.truth

ROWS = 60


def jobs() -> list[Job]:
    found = [entry.job for entry in read_job_file(HERE / "evaluation.json")]
    return [job for job in found if job is not None]


@pytest.mark.parametrize("direct", [False, True], ids=["quick", "every block"])
def test_every_row_is_exact(direct: bool) -> None:
    wrong = {}
    for job in jobs():
        batch, setup = job.eval_batch_size, setup_of(job)
        assert batch is not None
        record = evaluation(setup, replay(setup), batch=batch if direct else min(batch, 2), direct=direct)
        if record.peak_bytes(batch) != job.case["measured"]["peak_bytes"]:
            wrong[job.name] = record.peak_bytes(batch)
    assert wrong == {}


def test_the_rows_cover_what_is_modelled() -> None:
    found = jobs()
    assert len(found) == ROWS
    assert {job.model.family for job in found} >= {"gpt2", "llama", "bert", "opt", "bloom", "mpt", "gemma3"}
    assert {job.model.task for job in found} == {"lm", "mlm", "cls"}
    assert {job.label_smoothing > 0 for job in found} == {True, False}
    assert {job.eval_batch_size == 1 for job in found} == {True, False}
    assert all(head_losses(job.model.family) for job in found if job.model.task == "lm")


def test_a_generation_needs_at_least_what_is_said() -> None:
    """Against traced peaks of making the last token, with a cache of all tokens before it."""
    entries = [entry.job for entry in read_job_file(HERE / "generation.json")]
    found = [job for job in entries if job is not None]
    shares = []
    for job in found:
        batch, length, setup = job.generation_batch_size, job.generation_length, setup_of(job)
        assert batch is not None
        assert length is not None
        said = generation_bytes(setup, replay(setup), batch, length)
        assert said <= job.case["measured"]["peak_bytes"], job.name
        shares.append(said / job.case["measured"]["peak_bytes"])
    assert len(found) == 20
    assert min(shares) > 0.85  # eager attention and grouped queries make copies that the bound leaves out
