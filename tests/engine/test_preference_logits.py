"""DPO over whole logits, as TRL before 1.15 and SWIFT have it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.test_losses import setup_of as setup_of_loss
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.record import Record
from vramplan.replay.step import replay

BATCH, LENGTH = 3, 128
SMALL, LARGE = 4096, 8192  # words of the vocabulary, whose rows of logits need no rounding


def record(vocabulary: int, loss: str, precision: str) -> Record:
    shape = {"name": "m", "family": "llama", "layers": 1, "hidden_size": 64, "attention_heads": 4}
    shape |= {"intermediate_size": 64, "vocabulary_size": vocabulary, "tied_embeddings": False}
    keys: dict[str, Any] = {"model": shape, "gpu": "a100", "runtime": "transformers", "loss": loss, "dropout": 0}
    keys |= {"sequence_length": LENGTH, "precision": precision, "adapter": {"kind": "lora"}}
    keys |= {"micro_batch_size": BATCH, "gradient_accumulation_steps": 1, "dpo_reference": "precomputed"}
    job = build_job(keys)
    return replay(setup_of(job, "none", False), batch=BATCH, direct=True)


@pytest.mark.closed_form
@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("amp-bf16", 4), ("pure-bf16", 2)])
def test_logits_of_pairs_are_kept_once_and_are_three_in_backward(precision: str, width: int) -> None:
    """In 16 bits rows of log-probabilities are kept in their place, each of which goes with its gradient."""
    small, large = (record(size, "dpo-logits", precision) for size in (SMALL, LARGE))
    logits = 2 * BATCH * LENGTH * (LARGE - SMALL) * width
    cast = 2 * 64 * (LARGE - SMALL) if precision == "amp-bf16" else 0  # of the head's weight, which autocast makes
    assert large.saved_bytes(BATCH) - small.saved_bytes(BATCH) == logits + cast
    beside = large.static_bytes(BATCH) - small.static_bytes(BATCH)
    most = large.peaks(BATCH)["backward"] - small.peaks(BATCH)["backward"] - beside
    assert 0 <= most - (3 if width == 4 else 2) * logits <= cast


@pytest.mark.parametrize("reference", ["", "-precomputed"])
@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "pure-bf16"])
def test_the_quick_replay_is_that_of_every_sequence(precision: str, reference: str) -> None:
    setup = setup_of_loss(f"dpo-logits{reference}", precision=precision)
    for batch in (1, BATCH):
        assert replay(setup).peaks(batch) == replay(setup, batch=batch, direct=True).peaks(batch)


def test_the_newest_release_needs_less() -> None:
    old, new = (record(LARGE, loss, "amp-bf16").peaks(BATCH) for loss in ("dpo-logits", "dpo"))
    assert old["backward"] - new["backward"] > 3 * 2 * BATCH * LENGTH * LARGE


def test_it_is_no_loss_of_another_program() -> None:
    with pytest.raises(InputError, match="dpo-logits is"):
        build_job({"model": "llama-3.2-1b", "runtime": "pytorch", "loss": "dpo-logits", "sequence_length": 64})


def test_its_answer_says_that_it_was_read() -> None:
    job = build_job({"model": "llama-3.2-1b", "gpu": "a100", "loss": "dpo-logits", "sequence_length": 64})
    assert job.dpo_reference == "model"
    assert "loss dpo-logits was never traced: the code of TRL 0.24 was read" in job.composed
