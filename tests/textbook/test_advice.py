"""Batch advice: what it says about the loop, and when it says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.running import fit, refused, run, valid, write_jobs
from vramplan.planner.textbook.advice import advise
from vramplan.results.advice import Advice


def advice(**keys: Any) -> Advice:
    usual: dict[str, Any] = {"base_batch_size": 256, "base_learning_rate": 0.1, "optimizer": "adamw"}
    usual |= {"micro": 16, "steps": 4, "data": 8, "batch_normalised": False, "task": "lm"}
    return advise(**{**usual, **keys})


def test_a_language_model_divides_by_tokens_and_a_classifier_by_steps() -> None:
    assert advice().loss_by == advice(task="mlm").loss_by == advice(task=None).loss_by == "tokens"
    assert "non-padding tokens" in advice().loss
    classifier = advice(task="cls")
    assert (classifier.loss_by, "by 4" in classifier.loss) == ("steps", True)
    assert "nothing to divide" in advice(task="cls", steps=1).loss


def test_one_device_has_nothing_to_synchronise() -> None:
    alone = advice(data=1)
    assert (alone.communication_saved, alone.synchronisation) == (None, None)
    assert advice(steps=1).synchronisation is None
    together = advice()
    assert together.communication_saved == 0.75
    assert "first 3 of the 4" in (together.synchronisation or "")
    assert "the first micro-step " in (advice(steps=2).synchronisation or "")


def test_batch_normalisation_is_warned_of_where_there_is_any() -> None:
    assert advice(micro=1).batch_normalisation is None
    assert "micro-batch of 7" in (advice(batch_normalised=True, task="image", micro=7).batch_normalisation or "")
    assert advice(batch_normalised=True, task="image", micro=8).batch_normalisation is None
    assert advice(batch_normalised=True, micro=256).layerwise_optimizer == "lars"


@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 100), st.integers(1, 64), st.floats(1e-6, 10))
def test_both_rules_agree_at_the_base_and_the_root_is_the_smaller_change(
    base: int, micro: int, steps: int, data: int, rate: float
) -> None:
    found = advice(base_batch_size=base, base_learning_rate=rate, micro=micro, steps=steps, data=data)
    assert found.effective_batch_size == micro * steps * data
    low, high = sorted((rate, found.linear_learning_rate))
    assert low * (1 - 1e-12) <= found.square_root_learning_rate <= high * (1 + 1e-12)
    assert found.learning_rate in (found.linear_learning_rate, found.square_root_learning_rate)


BASE = ("--base-batch-size", 256, "--base-lr", 0.1)
GPT2 = ("-m", "gpt2", "-g", "a100")


@pytest.mark.closed_form
def test_the_figures_of_the_texts() -> None:
    sgd = fit(*GPT2, *BASE, "--optimizer", "sgd-momentum", "--global-batch", 1024)["advice"]["learning_rate"]
    assert (sgd["rule"], sgd["recommended"]) == ("linear", pytest.approx(0.4))
    large = fit(*GPT2, *BASE, "--global-batch", 8192, "--gpus", 8)["advice"]
    assert large["learning_rate"]["linear"] == pytest.approx(3.2)
    assert large["learning_rate"]["square_root"] == pytest.approx(0.57, abs=0.005)
    assert large["learning_rate"]["rule"] == "square-root"
    assert (large["layerwise_optimizer"], large["warm_up"]["least_steps"]) == ("lamb", 5000)
    pinned = fit(*GPT2, *BASE, "--micro-batch", 16, "--steps", 4, "--gpus", 8)["advice"]
    assert (pinned["effective_batch_size"], pinned["communication_saved_fraction"]) == (512, 0.75)


def test_advice_touches_nothing_else() -> None:
    with_it, without = fit(*GPT2, *BASE), fit(*GPT2)
    assert without.pop("advice") is None
    assert with_it.pop("advice") is not None
    for answer in (with_it, without):
        assert answer["job"].pop("base_batch_size") == (256 if answer is with_it else None)
        assert answer["job"].pop("base_learning_rate") == (0.1 if answer is with_it else None)
    assert with_it == without


@pytest.mark.parametrize(
    ("given", "other"),
    [(("--base-lr", 0.1), "--base-batch-size"), (("--base-batch-size", 256), "--base-lr")],
)
def test_one_without_the_other_names_the_other(given: tuple[Any, ...], other: str) -> None:
    assert other in refused("fit", *GPT2, *given).err


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "x", "1e99"])
def test_a_learning_rate_that_means_nothing_is_refused(rate: str) -> None:
    assert "base_learning_rate" in refused("fit", *GPT2, "--base-batch-size", 256, "--base-lr", rate).err


def test_a_gate_file_may_ask_for_it_and_an_echoed_job_still_does(tmp_path: Any) -> None:
    job = {"model": "gpt2", "gpu": "a100", "base_batch_size": 256, "base_learning_rate": 0.1}
    first = valid("check", run("check", write_jobs(tmp_path / "jobs", job), "--format", "json").document)["results"][0]
    again = run("check", write_jobs(tmp_path / "again", first["job"]), "--format", "json").document["results"][0]
    assert first["advice"] is not None
    assert first["advice"] == again["advice"]
