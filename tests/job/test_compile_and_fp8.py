"""What compiled steps and fp8 are refused with, and what is taken for granted."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.explanation import explain
from vramplan.answers.placement import placements_of
from vramplan.errors import InputError, UsageError
from vramplan.job import build_job
from vramplan.planner.bands import BEYOND_PLAIN, COMPILED, PLAIN
from vramplan.planner.decision import decide
from vramplan.planner.judge import Judge
from vramplan.replay.precision import PRECISIONS

LLAMA = {"model": "llama-3.2-1b", "gpu": "h100"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"compile": True, "activation_checkpointing": "selective"}, "with activation_checkpointing selective"),
        (
            {"compile": True, "activation_checkpointing": "selective-layer:2"},
            "with activation_checkpointing selective-l",
        ),
        ({"compile": True, "activation_checkpointing": "optimal"}, "with activation_checkpointing optimal"),
        ({"compile": True, "optimizer_in_backward": True}, "compile: true hands out all gradients at the end"),
        ({"compile": True, "optimizer": "lomo"}, "compile: true hands out all gradients at the end"),
        ({"compile": True, "runtime": "textbook"}, "compile: no equation of the textbook"),
        ({"precision": "fp8", "model": "gpt2"}, "fp8 is not modelled for gpt2, whose layers are Conv1D"),
        ({"precision": "fp8", "model": "vit-base-patch16-224"}, "fp8 is not modelled for vit, whose images are seldom"),
        ({"precision": "fp8", "model": "falcon-7b"}, "fp8 is not modelled for falcon, whose code writes over what"),
        ({"precision": "fp8", "model": "t5-base", "target_length": 100}, "target_length: 100 is no multiple of 16"),
        ({"precision": "fp8", "activation_checkpointing": "selective-op"}, "fp8 is not modelled with activation_check"),
        ({"precision": "fp8", "sequence_length": 1000}, "sequence_length: 1000 is no multiple of 16, which the"),
        ({"precision": "fp8", "gpu": "a100"}, "a100-80gb (8.0) has no fp8, which needs compute capability 8.9"),
        ({"precision": "fp8", "gpu": "mi250x"}, "has no fp8, which needs compute capability 8.9"),
        ({"precision": "fp8", "optimizer": "lion"}, "lion over a master copy (fp8) is not modelled"),
        (
            {"precision": "fp8", "optimizer_implementation": "foreach"},
            "foreach contradicts fp8, which is one fused step",
        ),
        ({"precision": "fp8", "compute_dtype": "bf16"}, "compute_dtype: bf16 is not modelled (fp8 has fp8)"),
        ({"precision": "fp8", "runtime": "textbook"}, "precision: the equations have no place for copies in fp8"),
    ],
    ids=str,
)
def test_what_is_refused_says_why(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**LLAMA, **keys})
    assert any(message in str(problem) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("gpu", ["h100", "l40s", "mi300x", "rtx-4090"])
def test_gpus_with_fp8(gpu: str) -> None:
    job = build_job({**LLAMA, "gpu": gpu, "precision": "fp8"})
    assert (job.precision, job.optimizer_implementation) == ("fp8", "fused")
    assert all(one.key != "gpu.fp8" for one in job.assumptions)


def test_an_unknown_gpu_counts_as_able() -> None:
    job = build_job({**LLAMA, "gpu": {"name": "x", "memory": "80 GiB"}, "precision": "fp8"})
    assert ("gpu.fp8", True) in [(one.key, one.value) for one in job.assumptions]


def test_fp8_has_the_states_of_mixed_bf16() -> None:
    eight, half = PRECISIONS["fp8"], PRECISIONS["mixed-bf16"]
    assert eight._replace(name=half.name, float8=False) == half
    assert build_job({**LLAMA, "precision": "fp8", "gradient_dtype": "fp32"}).fp32_gradients


def test_a_compiled_adapter_stores_its_activations() -> None:
    job = build_job({**LLAMA, "compile": True, "adapter": {"kind": "lora"}})
    assert job.activation_checkpointing == "none"
    assert ("activation_checkpointing", "none") in [(one.key, one.value) for one in job.assumptions]
    assert [rung.strategy for rung in decide(job).choice.ladder] == ["none"]


def test_the_basis_is_stated_and_the_band_is_wider() -> None:
    keys = {**LLAMA, "micro_batch_size": 2, "global_batch_size": 2, "activation_checkpointing": "none"}
    keys |= {"weight_dtype": "fp32"}  # a compiled step was not traced with others
    job = build_job({**keys, "compile": True})
    assert [one.value for one in job.assumptions if one.key == "compile"] == [True]
    peak = decide(job).choice.rung.peak
    context = Judge(job).context_bytes
    assert peak.high == -(-peak.allocated * (100 + PLAIN.above + BEYOND_PLAIN["compiled"]) // 100) + context
    assert peak.low == -(-peak.allocated * (100 - COMPILED.below) // 100) + -(-context // 2)
    plain = decide(build_job(keys)).choice.rung.peak
    assert plain.low == plain.allocated + -(-context // 2)


def test_the_limits_are_where_the_verdict_turns() -> None:
    judge = Judge(build_job({**LLAMA, "compile": True}))
    for strategy in ("none", "full"):
        for limit, wanted in ((judge.limits.high, {"fits"}), (judge.limits.low, {"fits", "tight"})):
            most = judge.largest_micro_batch(strategy, True, limit, certain=wanted == {"fits"})
            schedule = decide(judge.job).choice.rung.schedule
            fitting = schedule._replace(micro_batch_size=most, gradient_accumulation_steps=2)
            assert judge.verdict(judge.footprint(strategy, fitting)) in wanted
            above = schedule._replace(micro_batch_size=most + 1, gradient_accumulation_steps=2)
            assert judge.verdict(judge.footprint(strategy, above)) not in wanted


def test_a_compiled_step_is_not_explained() -> None:
    job = build_job({**LLAMA, "compile": True})
    with pytest.raises(UsageError, match="no operators of its own"):
        explain(job)
    with pytest.raises(UsageError, match="not modelled with placements"):
        placements_of(job)
