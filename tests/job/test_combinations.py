"""Closed form: techniques that were never traced together are refused as a pair, and each is accepted alone."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.replay.techniques.combinations import BESIDE, NOT_BESIDE, UNTRACED, techniques
from vramplan.values.job import Job

ALONE: dict[str, dict[str, Any]] = {
    "compile": {"compile": True},
    "activation_checkpointing": {"activation_checkpointing": "selective-op"},
    "precision": {"precision": "fp8"},
    "loss": {"loss": "dpo"},
    "adapter": {"adapter": {"kind": "lora"}},
    "frozen": {"frozen": ["layers.0-3"]},
    "padding": {"padding": "right"},
    "packing": {"packing": True},
    "offload": {"offload": "activations"},
    "checkpoint_reentrant": {"activation_checkpointing": "full", "checkpoint_reentrant": True},
    "label_smoothing": {"label_smoothing": 0.1},
    "weight_dtype": {"weight_dtype": "bf16"},
    "optimizer": {"optimizer": "galore-adamw:64"},
    "quantization": {"adapter": {"kind": "lora"}, "quantization": "gptq-int4", "precision": "pure-bf16"},
    "eval_batch_size": {"eval_batch_size": 4},
    "generation_batch_size": {"generation_batch_size": 4, "generation_length": 64},
    "generation_length": {"generation_batch_size": 4, "generation_length": 64},
}

PAIRS = [(one, other) for one, others in UNTRACED.items() for other in others]
PAIRS += [(one, other) for one in NOT_BESIDE for other in BESIDE]


def job(**keys: Any) -> Job:
    found = build_job({"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 512, **keys})
    assert isinstance(found, Job)
    return found


@pytest.mark.parametrize("key", ALONE)
def test_alone_it_is_a_job(key: str) -> None:
    assert key in techniques(job(**ALONE[key]))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_pair_is_refused(one: str, other: str) -> None:
    with pytest.raises(InputError) as caught:
        job(**ALONE[one], **{key: value for key, value in ALONE[other].items() if key not in ALONE[one]})
    assert "not modelled" in str(caught.value)


TOGETHER = [
    *[("adapter", key) for key in ("loss", "offload", "checkpoint_reentrant", "padding", "eval_batch_size")],
    *[("adapter", key) for key in ("generation_batch_size", "label_smoothing", "weight_dtype")],
    *[("frozen", key) for key in ("loss", "offload", "checkpoint_reentrant", "padding")],
    *[("padding", key) for key in ("offload", "checkpoint_reentrant", "loss")],
    *[("loss", key) for key in ("checkpoint_reentrant", "weight_dtype")],
    ("offload", "checkpoint_reentrant"),
]


@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_a_traced_pair_is_a_job(one: str, other: str) -> None:
    assert {one, other} <= techniques(job(**ALONE[one], **ALONE[other])).keys()


def test_every_pair_is_one_or_the_other() -> None:
    assert not set(PAIRS) & set(TOGETHER)


@pytest.mark.parametrize("key", ["adapter", "frozen"])
def test_reentrant_checkpoints_over_frozen_weights_say_what_they_need(key: str) -> None:
    told = {one.key: one.why for one in job(**ALONE[key], **ALONE["checkpoint_reentrant"]).assumptions}
    assert "enable_input_require_grads" in told["checkpoint_reentrant"]
