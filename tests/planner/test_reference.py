"""The run that docs/job-format.md describes for orientation, and the sums that every answer keeps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings

from tests.answers import answer
from tests.cli.draws import jobs
from vramplan.answers.components import COMPONENTS
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.results import FitResult

GIB = 1 << 30
NCCL = Fraction("1.45")  # of a communicator
CONTEXT = {"volta": Fraction("1.3"), None: Fraction("0.6")}


@pytest.fixture(scope="module")
def reference() -> FitResult:
    return answer(build_job({"model": "gpt2-xl", "gpu": "v100"}))


@pytest.mark.closed_form
def test_gpt2_xl_on_a_v100_is_the_run_of_the_job_format(reference: FitResult) -> None:
    peak, recommended = reference.peak, reference.recommended
    sizes = [peak.allocated_bytes, peak.device_bytes, peak.low_bytes, peak.high_bytes, reference.usable_bytes]
    assert reference.verdict == "fits"
    for size, gib in zip(sizes, (27.19, 29.57, 27.84, 31.20, 31.74), strict=True):
        assert size / GIB == pytest.approx(gib, abs=0.01)
    assert (recommended.activation_checkpointing, recommended.micro_batch_size) == ("sqrt", 2)
    assert (recommended.gradient_accumulation_steps, recommended.global_batch_size) == (256, 512)
    assert (reference.job["precision"], reference.job["attention"]) == ("amp-fp16", "efficient")
    assert (reference.job["optimizer"], reference.job["optimizer_implementation"]) == ("adamw", "fused")
    rows = {row.activation_checkpointing: row for row in reference.alternatives}
    assert list(rows) == ["none", "sqrt", "full"]
    assert (rows["none"].verdict, rows["none"].micro_batch_size) == ("does-not-fit", 1)
    assert (rows["full"].verdict, rows["full"].micro_batch_size) == ("fits", 1)
    assert rows["none"].recomputed_fraction == 0 < rows["sqrt"].recomputed_fraction < 0.34


def test_the_checkpoints_are_those_of_the_judged_run(reference: FitResult) -> None:
    assert reference.checkpoints[0] == (0, 6)
    assert reference.checkpoints[-1] == (42, 47)  # the last one is shorter
    assert [first for first, _ in reference.checkpoints[1:]] == [last + 1 for _, last in reference.checkpoints[:-1]]


@pytest.mark.sweep(4)
@pytest.mark.closed_form
@settings(deadline=None, max_examples=18)
@given(jobs())
def test_every_sum_of_an_answer_adds_up(raw: dict[str, Any]) -> None:
    result = answer(build_job(raw))
    peak = result.peak
    assert sum(part.bytes for part in result.components) == peak.allocated_bytes
    assert {part.name for part in result.components} <= set(COMPONENTS)
    assert all(part.bytes > 0 and part.basis for part in result.components)
    assert sum(part.bytes for part in result.overheads) == peak.device_bytes - peak.allocated_bytes
    phases = {"forward": peak.forward_bytes, "backward": peak.backward_bytes, "step": peak.step_bytes}
    assert peak.allocated_bytes == max(phases.values()) == phases[peak.phase]
    assert 0 <= peak.saved_bytes <= peak.allocated_bytes
    assert result.headroom_bytes == result.usable_bytes - peak.device_bytes
    assert result.total_parameters == result.trainable_parameters

    # "Until the allocator is simulated"
    context = CONTEXT[None] * GIB
    if raw["parallel"]["data"] > 1:
        assert result.overheads[-1].name == "nccl"
        context += NCCL * GIB
    assert abs(peak.reserved_bytes - Fraction("1.04") * peak.allocated_bytes) <= 1
    assert abs(peak.device_bytes - peak.reserved_bytes - context) <= 1
    assert abs(peak.low_bytes - peak.allocated_bytes - context / 2) <= 1
    decision = decide(build_job(raw))
    largest = max(decision.record.sizes(decision.choice.rung.schedule.micro_batch_size))
    plain, most = (Fraction(times) * peak.allocated_bytes for times in ("1.10", "1.30"))
    times = Fraction("1.5" if decision.choice.rung.placement == "none" else "3")
    upper = max(plain, min(most, peak.allocated_bytes + times * largest))
    assert abs(peak.high_bytes - upper - context) <= 2
    high, low, usable = peak.high_bytes, peak.low_bytes, result.usable_bytes
    assert result.verdict == ("fits" if high <= usable else "tight" if low <= usable else "does-not-fit")
    assert result.utilization == round(peak.device_bytes / result.usable_bytes, 6)
