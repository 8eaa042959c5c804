"""Closed form: techniques that were never traced together are answered as a pair, said, and with a wider band."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import describe
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.planner.judge import Judge
from vramplan.replay.techniques.evidence import missing, rows_of, untraced
from vramplan.replay.techniques.vocabulary import key_of, techniques_of
from vramplan.values.job import ResolvedJob

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
}

BESIDE = ("eval_batch_size", "generation_batch_size")
COMPOSED = {
    "compile": ("frozen", "padding", "packing", "offload", "checkpoint_reentrant", "label_smoothing", "weight_dtype"),
    "precision": ("adapter", "frozen", "padding", "packing", "offload", "checkpoint_reentrant", "label_smoothing"),
    "optimizer": ("frozen",),
    "quantization": ("loss", "offload", "checkpoint_reentrant", "padding", "compile"),
}
"""Written by hand, as what no row had when this was written; a pair that is traced since then leaves it."""

PAIRS = [(one, other) for one, others in COMPOSED.items() for other in others]
PAIRS += [(one, other) for one in ("compile", "precision", "packing") for other in BESIDE]


def job(**keys: Any) -> ResolvedJob:
    found = build_job({"model": "llama-3.2-1b", "gpu": "h100", "sequence_length": 512, **keys})
    assert isinstance(found, ResolvedJob)
    return found


def keys_of(job: ResolvedJob) -> set[str]:
    return {key_of(one) for one in techniques_of(job)}


@pytest.mark.parametrize("key", ALONE)
def test_alone_it_is_a_job(key: str) -> None:
    assert key in keys_of(job(**ALONE[key]))


@pytest.mark.sweep(16)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_a_pair_is_composed_and_said(one: str, other: str) -> None:
    found = job(**ALONE[one], **{key: value for key, value in ALONE[other].items() if key not in ALONE[one]})
    assert any("was never traced together with" in said for said in found.composed)
    composed, exact = Judge(found), Judge(found._replace(composed=()))
    assert composed.margin.below > exact.margin.below
    assert composed.margin.above > exact.margin.above
    answer = decide(found)
    rung = answer.choice.rung
    assert rung.peak.allocated == exact.footprint(rung.placement, rung.schedule).allocated
    assert set(found.composed) <= {
        one.partition(": the range")[0] for one in describe(answer, with_remedies=False).warnings
    }


TOGETHER = [
    *[("adapter", key) for key in ("loss", "offload", "checkpoint_reentrant", "padding", "eval_batch_size")],
    *[("adapter", key) for key in ("generation_batch_size", "label_smoothing", "weight_dtype")],
    *[("frozen", key) for key in ("loss", "offload", "checkpoint_reentrant", "padding")],
    *[("padding", key) for key in ("offload", "checkpoint_reentrant", "loss")],
    *[("loss", key) for key in ("checkpoint_reentrant", "weight_dtype", "offload")],
    ("optimizer", "adapter"),
    ("offload", "checkpoint_reentrant"),
]


@pytest.mark.parametrize(("one", "other"), TOGETHER)
def test_a_traced_pair_is_a_job(one: str, other: str) -> None:
    found = job(**ALONE[one], **ALONE[other])
    assert {one, other} <= keys_of(found)
    assert found.composed == ()


def test_a_technique_of_another_family_leaves_a_gap_that_is_told_and_not_refused() -> None:
    found = job(model="bloom-560m", ema=True, max_gradient_norm=1.0)
    assert "ema: true" in {gap.technique for gap in missing(found) if gap.beside is None}
    assert "bloom" not in rows_of("ema: true").codes
    assert untraced(found) == ()


def test_rows_of_one_family_are_none_of_another_where_the_family_decides() -> None:
    found = job(model="phi-2", compile=True, adapter={"kind": "lora"})
    assert any("in the code of phi" in said for said in found.composed)


def test_every_pair_is_one_or_the_other() -> None:
    assert not set(PAIRS) & set(TOGETHER)


@pytest.mark.parametrize("key", ["adapter", "frozen"])
def test_reentrant_checkpoints_over_frozen_weights_say_what_they_need(key: str) -> None:
    told = {one.key: one.why for one in job(**ALONE[key], **ALONE["checkpoint_reentrant"]).assumptions}
    assert "enable_input_require_grads" in told["checkpoint_reentrant"]
