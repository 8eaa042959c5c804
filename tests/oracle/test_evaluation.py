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

ROWS = {"evaluation": 60, "pairs_beside": 70}


def jobs(file: str = "evaluation") -> list[Job]:
    found = [entry.job for entry in read_job_file(HERE / f"{file}.json")]
    return [job for job in found if job is not None and job.eval_batch_size is not None]


def generations(file: str) -> list[Job]:
    found = [entry.job for entry in read_job_file(HERE / f"{file}.json")]
    return [job for job in found if job is not None and job.generation_batch_size is not None]


@pytest.mark.parametrize("direct", [False, True], ids=["quick", "every block"])
@pytest.mark.parametrize("file", ROWS)
def test_every_row_is_exact(file: str, direct: bool) -> None:
    wrong = {}
    for job in jobs(file):
        batch, setup = job.eval_batch_size, setup_of(job)
        assert batch is not None
        record = evaluation(setup, replay(setup), batch=batch if direct else min(batch, 2), direct=direct)
        if record.peak_bytes(batch) != job.case["measured"]["peak_bytes"]:
            wrong[job.name] = record.peak_bytes(batch)
    assert wrong == {}


def test_the_rows_cover_what_is_modelled() -> None:
    assert {file: len(jobs(file)) for file in ROWS} == ROWS
    beside = jobs("pairs_beside")
    assert {job.adapter.kind for job in beside if job.adapter is not None} == {"lora", "dora", "ia3"}
    assert {job.quantization for job in beside} == {None, "nf4", "int8"}
    assert any(job.frozen for job in beside)
    assert any(job.half_weights for job in beside)
    assert any(job.padding == "right" for job in beside)
    found = jobs()
    assert {job.model.family for job in found} >= {"gpt2", "llama", "bert", "opt", "bloom", "mpt", "gemma3"}
    assert {job.model.task for job in found} == {"lm", "mlm", "cls"}
    assert {job.label_smoothing > 0 for job in found} == {True, False}
    assert {job.eval_batch_size == 1 for job in found} == {True, False}
    assert all(head_losses(job.model.family) for job in found if job.model.task == "lm")


def test_a_generation_needs_at_least_what_is_said() -> None:
    """Against traced peaks of making the last token, with a cache of all tokens before it."""
    shares = {}
    for job in (*generations("generation"), *generations("pairs_beside")):
        batch, length, setup = job.generation_batch_size, job.generation_length, setup_of(job)
        assert batch is not None
        assert length is not None
        said = generation_bytes(setup, replay(setup), batch, length)
        assert said <= job.case["measured"]["peak_bytes"], job.name
        # DoRA makes several matrices as large as a weight for each token
        if job.adapter is None or job.adapter.kind != "dora":
            shares[job.name] = said / job.case["measured"]["peak_bytes"]
    assert len(shares) == 20 + 22
    assert min(shares.values()) > 0.8  # eager attention and grouped queries make copies that the bound leaves out
