"""CONTRACT: which models have which selective checkpoints."""

from __future__ import annotations

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.values.job import ResolvedJob


def job(model: str, strategy: str, **keys: object) -> ResolvedJob:
    return build_job({"model": model, "gpu": "a100-80gb", "activation_checkpointing": strategy, **keys})


def refused(model: str, strategy: str, **keys: object) -> str:
    with pytest.raises(InputError) as caught:
        job(model, strategy, **keys)
    return str(caught.value)


@pytest.mark.parametrize(
    "model", ["mixtral-8x7b", "deepseek-v2-lite", "t5-base", "bart-base", "vit-b-16", "gemma-2-2b"]
)
def test_both_strategies(model: str) -> None:
    for strategy in ("selective", "selective-op"):
        assert job(model, strategy).activation_checkpointing == strategy


@pytest.mark.parametrize("model", ["bloom-560m", "mpt-7b", "falcon-40b"])
def test_attention_that_is_no_function_has_only_the_other_one(model: str) -> None:
    assert job(model, "selective-op").activation_checkpointing == "selective-op"
    assert "(use selective-op, sqrt, full or every:K)" in refused(model, "selective")


def test_falcon_changes_what_a_checkpoint_keeps() -> None:
    wrong = refused("falcon-40b", "selective-op", attention="eager")
    assert "gives wrong gradients with eager attention of falcon-40b" in wrong
    assert "(use attention efficient)" in wrong
    assert "(use sqrt, full or every:K)" in refused("falcon-7b", "selective-op", attention="eager")
    assert job("falcon-rw-1b", "selective-op", attention="eager").attention == "eager"  # with ALiBi it makes new scores


def test_models_that_nobody_traced() -> None:
    assert "selective-op is not modelled for clip (use sqrt, full or every:K)" in refused(
        "clip-vit-b-16", "selective-op"
    )
