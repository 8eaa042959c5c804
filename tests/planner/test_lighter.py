"""Closed form: what is recommended is a job that can be asked for, and the very one that was computed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.job.test_combinations import ALONE
from tests.job.test_families import small
from vramplan.answers.fit import answer
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.lighter import lighter_training
from vramplan.values.job import Job

CARD = {"name": "x", "memory": "2 GiB", "bf16": True, "flash_attention": True, "compute_capability": 9.0}
NO = {"gpu": CARD, "micro_batch_size": 2048}


def job(keys: dict[str, Any]) -> Job | None:
    try:
        found = build_job(keys)
    except InputError:
        return None
    assert isinstance(found, Job)
    return found


@pytest.mark.parametrize("technique", [{}, ALONE["adapter"], ALONE["compile"]], ids=["none", "adapter", "compile"])
@pytest.mark.parametrize("model_type", sorted(MODEL_TYPES))
def test_every_remedy_is_a_job(model_type: str, technique: dict[str, Any]) -> None:
    keys = {"model": small(model_type), **NO, **technique}
    asked = job(keys)
    if asked is None:
        assert technique, "a plain job of every model type is modelled"
        return
    for remedy in answer(asked).remedies:
        if "gpu" not in remedy.change:
            assert job({**keys, **remedy.change}) is not None, remedy.change
    check_lighter(asked, keys)


@pytest.mark.parametrize("precision", ["amp-bf16", "pure-fp16"])
@pytest.mark.parametrize("adapter", [{}, ALONE["adapter"], {"adapter": {"kind": "lora", "dtype": "fp32"}}])
@pytest.mark.parametrize("reference", [{}, {"dpo_reference": "model"}])
def test_every_lighter_preference_training_is_a_job(
    precision: str, adapter: dict[str, Any], reference: dict[str, Any]
) -> None:
    keys = {"model": small("llama"), **NO, **ALONE["loss"], "precision": precision, **adapter, **reference}
    asked = job(keys)
    assert asked is not None
    assert check_lighter(asked, keys) > 0 or precision == "pure-fp16"


def check_lighter(asked: Job, keys: dict[str, Any]) -> int:
    number = 0
    for change, _, lighter in lighter_training(asked):
        number += 1
        found = job({**keys, **change})
        assert found is not None, change
        assert (found.adapter, found.quantization, found.half_weights, found.dpo_reference) == (
            lighter.adapter,
            lighter.quantization,
            lighter.half_weights,
            lighter.dpo_reference,
        )
    return number
