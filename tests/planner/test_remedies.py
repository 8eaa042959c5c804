"""Each remedy does what it says: applied to the echoed job it gives that verdict, and saves those bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.draws import jobs
from vramplan.answers.fit import answer
from vramplan.catalog.gpus import list_gpus
from vramplan.job import build_job
from vramplan.results import FitResult

CATALOGUE = [profile.gpu() for profile in list_gpus()]


def run(raw: Mapping[str, Any]) -> FitResult:
    return answer(build_job(raw), lambda: CATALOGUE)


def merged(job: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    both = {key: (job[key], value) for key, value in change.items() if key in job}
    nested = {k: {**old, **new} for k, (old, new) in both.items() if isinstance(old, dict) and isinstance(new, dict)}
    return {**job, **change, **nested}


def verify(result: FitResult) -> None:
    if result.verdict != "does-not-fit":
        assert result.remedies == ()
        return
    for remedy in result.remedies:
        again = run(merged(result.job, remedy.change))
        assert again.verdict == remedy.verdict != "does-not-fit", remedy
        assert result.peak.device_bytes - again.peak.device_bytes == remedy.saves_bytes, remedy
        assert remedy.cost


@pytest.mark.parametrize(
    "keys",
    [
        {"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 32, "activation_checkpointing": "full"},
        {"model": "gpt2-xl", "gpu": "v100", "activation_checkpointing": "none", "attention": "eager"},
        {"model": "gpt2-xl", "gpu": "v100", "precision": "fp32", "runtime": "pytorch", "micro_batch_size": 32},
        {"model": "gpt2-xl", "gpu": "t4", "precision": "mixed-fp16", "optimizer": "rmsprop"},
        {"model": "gpt2-xl", "gpu": "t4", "precision": "mixed-fp16", "optimizer": "sgd-momentum", "runtime": "pytorch"},
        {"model": "gpt2-large", "gpu": "t4", "micro_batch_size": 8, "hold_outputs": True},
        {"model": "llama-3-8b", "gpu": "a100-80gb", "precision": "mixed-bf16"},
        {
            "model": "llama-3-8b",
            "gpu": "a100-80gb",
            "parallel": {"data": 8},
            "sequence_length": 8192,
            "weight_dtype": "fp32",
        },
        {"model": "mistral-7b", "gpu": "a100", "attention": "eager", "sequence_length": 6000, "weight_dtype": "fp32"},
        {"model": "gpt2-xl", "gpu": "v100", "parallel": {"data": 4}},
        {
            "model": "gpt2-xl",
            "gpu": "v100",
            "parallel": {"data": 4},
            "gradient_accumulation_steps": 1,
            "optimizer_implementation": "foreach",
        },
        {"model": "gpt2-xl", "gpu": "t4", "parallel": {"data": 8, "sharding": "fsdp"}, "micro_batch_size": 16},
        {"model": "bert-base-uncased", "gpu": "rtx-3060", "micro_batch_size": 96, "activation_checkpointing": "none"},
        {"model": "bert-base-uncased", "gpu": {"name": "card", "memory": "6 GiB"}, "micro_batch_size": 512},
        {
            "model": "llama-3-8b",
            "gpu": "rtx-4090",
            "adapter": {"kind": "lora"},
            "sequence_length": 1024,
            "weight_dtype": "fp32",
        },
        {"model": "gpt2-xl", "gpu": "t4", "adapter": {"kind": "lora"}, "weight_dtype": "fp16", "micro_batch_size": 32},
        {"model": "gpt2-xl", "gpu": "v100", "frozen": ["embeddings", "layers.0-23"], "micro_batch_size": 32},
    ],
    ids=lambda keys: f"{keys['model']}",
)
def test_every_remedy_of_a_real_run_keeps_its_word(keys: dict[str, Any]) -> None:
    result = run(keys)
    assert result.verdict == "does-not-fit"
    assert result.remedies
    verify(result)


@settings(deadline=None, max_examples=36)
@given(jobs(), st.integers(1, 400))
def test_every_remedy_of_a_random_run_keeps_its_word(raw: dict[str, Any], room: int) -> None:
    # the context takes 614.4 MiB
    verify(run({**raw, "gpu": {**raw["gpu"], "memory": f"{614 + room * room // 100} MiB"}}))


def test_the_pinned_micro_batch_that_needs_too_much() -> None:
    keys = {"model": "gpt2-xl", "gpu": "v100", "activation_checkpointing": "full"}
    result = run({**keys, "micro_batch_size": 32})
    change = next(remedy.change for remedy in result.remedies if "micro_batch_size" in remedy.change)
    assert change == {"micro_batch_size": 1, "gradient_accumulation_steps": 512}
    assert run({**keys, **change}).verdict == "fits"
    larger = [remedy.change["gpu"] for remedy in result.remedies if "gpu" in remedy.change]
    assert len(larger) == 1


def test_what_fits_and_what_is_tight_needs_no_remedy() -> None:
    assert run({"model": "gpt2", "gpu": "a100"}).remedies == ()
    tight = run({"model": "gpt2-xl", "gpu": {"name": "card", "memory": "28 GiB"}, "precision": "amp-fp16"})
    assert (tight.verdict, tight.remedies) == ("tight", ())


def test_replicas_that_do_not_fit_are_told_to_share() -> None:
    result = run({"model": "gpt2-xl", "gpu": "v100", "parallel": {"data": 8}, "runtime": "pytorch"})
    assert {"parallel": {"sharding": "fsdp"}} in [remedy.change for remedy in result.remedies]


def test_certain_remedies_hide_tight_ones() -> None:
    for memory in range(14, 40, 2):
        result = run({"model": "gpt2-xl", "gpu": {"name": "card", "memory": f"{memory} GiB"}, "micro_batch_size": 16})
        assert len({remedy.verdict for remedy in result.remedies}) <= 1


def test_an_absurd_micro_batch_is_answered_at_once() -> None:
    result = run({"model": "gpt2", "gpu": "v100", "micro_batch_size": 10**12})
    assert result.verdict == "does-not-fit"
    verify(result)
