"""Evaluation and generation are warnings: said where they need more than training, and never part of the verdict."""

from __future__ import annotations

from typing import Any

from vramplan.answers.fit import answer
from vramplan.job import build_job
from vramplan.results import FitResult

JOB = {"model": "gpt2", "gpu": "v100", "micro_batch_size": 4, "gradient_accumulation_steps": 1}


def fit(**keys: Any) -> FitResult:
    return answer(build_job({**JOB, **keys}))


def said(result: FitResult) -> str:
    return " ".join(result.warnings)


def test_a_small_evaluation_is_not_mentioned() -> None:
    assert "evaluation" not in said(fit(eval_batch_size=4))


def test_a_large_evaluation_is_a_warning_and_changes_nothing_else() -> None:
    plain, warned = fit(), fit(eval_batch_size=64)
    assert "an evaluation of 64 sequences allocates " in said(warned)
    assert ", more than the " in said(warned)
    assert " of training, and does not fit (device " in said(warned)
    assert (warned.peak, warned.verdict, warned.components) == (plain.peak, plain.verdict, plain.components)


def test_the_largest_evaluation_that_stays_below_training() -> None:
    sentence = next(one for one in fit(eval_batch_size=64).warnings if "evaluation" in one)
    most = int(sentence.rpartition("; ")[2].split()[0])
    assert 4 <= most < 64
    assert "evaluation" not in said(fit(eval_batch_size=most))
    assert "evaluation" in said(fit(eval_batch_size=most + 1))


def test_generation_says_what_it_needs_at_least() -> None:
    assert "generating" not in said(fit(generation_batch_size=1, generation_length=1024))
    large = said(fit(generation_batch_size=512, generation_length=1024))
    assert "generating 512 sequences of 1024 tokens allocates at least " in large
    assert "does not fit" in large
    middle = said(fit(generation_batch_size=128, generation_length=1024))
    assert "at least" in middle
    assert "and fits" not in middle


def test_a_loss_outside_of_the_model_has_remedies_but_no_optimal_placement() -> None:
    for keys in ({"loss": "dpo"}, {"label_smoothing": 0.1}):
        result = fit(gpu="t4", micro_batch_size=16, activation_checkpointing="none", **keys)
        assert result.verdict == "does-not-fit"
        assert result.remedies
        assert "optimal" not in str(result.remedies)
