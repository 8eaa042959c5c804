"""What `vramplan measure` found on an H100, beside what is predicted: the replay and the allocator on real hardware.

The tolerances are what is known and not modelled, each with its size: none is a constant of the product.
"""

from __future__ import annotations

import pytest

from tests.measured.own import all_cases, ran
from vramplan.answers.validation import counted_bytes
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.truth

MIB = 2**20
WORKSPACES = 64 * MIB  # two of cuBLAS, of 32 MiB on Hopper
CUBLASLT = 2.5 * MIB  # one of 1 MiB in each thread that adds a bias, and numbers on the host's way to the device
CONVOLVED = ("vit", "resnet", "clip")
SCRATCH = 135 * MIB  # of cuDNN's convolutions and of sums over many rows beside them, which the replay has not
TAILS = 36 * MIB  # of blocks that are not split: a case with as many as 700 blocks is off by so much
FRAGMENTS, FAR = 0.011, 0.025
CUDNN_RESERVES = 0.06  # of ResNet what the number of parts decides that cuDNN sums
FRAGMENTED = 0.11  # of one job, whose blocks fall otherwise


def convolves(job: ResolvedJob) -> bool:
    return job.model.name.startswith(CONVOLVED)


@pytest.mark.sweep
def test_what_is_asked_for_is_the_replay_and_the_workspaces_of_cublas() -> None:
    """`requested_bytes` counts what PyTorch is asked for before it rounds: nothing of the allocator is in it."""
    for job, result, _, trace in ran():
        beside = trace["requested_bytes"] - result.peak.allocated_bytes
        most = WORKSPACES + CUBLASLT + (SCRATCH if convolves(job) else 0)
        assert WORKSPACES - MIB <= beside <= most, (job.name, beside / MIB)


@pytest.mark.sweep
def test_what_is_allocated_is_that_in_blocks() -> None:
    for job, result, measured, _ in ran():
        off = abs(counted_bytes(result) - measured["peak_bytes"])
        assert off <= (TAILS + SCRATCH if convolves(job) else TAILS + 40 * MIB), (job.name, off / MIB)
    within = [abs(counted_bytes(result) / measured["peak_bytes"] - 1) <= 0.001 for _, result, measured, _ in ran()]
    assert sum(within) >= 0.85 * len(within)


@pytest.mark.sweep
def test_what_is_reserved_is_that_of_the_simulated_allocator() -> None:
    errors = {job.name: result.peak.reserved_bytes / trace["reserved_bytes"] - 1 for job, result, _, trace in ran()}
    others = [abs(error) for name, error in errors.items() if "resnet" not in name]
    assert sum(error <= 0.001 for error in others) >= 0.6 * len(others)
    assert sum(error <= FRAGMENTS for error in others) >= 0.85 * len(others)
    assert sum(error <= FAR for error in others) >= 0.97 * len(others)
    assert all(abs(error) <= CUDNN_RESERVES for name, error in errors.items() if "resnet" in name), errors
    assert all(abs(error) <= FRAGMENTED for error in errors.values()), errors


@pytest.mark.sweep
def test_what_the_device_shows_is_that_and_the_context() -> None:
    for job, result, _, trace in ran():
        outside = result.peak.device_bytes - result.peak.reserved_bytes
        assert abs(outside - (trace["device_bytes"] - trace["reserved_bytes"])) <= 0.04 * 2**30, job.name


@pytest.mark.sweep
def test_whatever_ran_out_of_memory_is_not_said_to_fit_and_the_others_are() -> None:
    verdicts = [(job.case["measured"]["outcome"], result.verdict) for job, result, *_ in all_cases()]
    assert [verdict for outcome, verdict in verdicts if outcome == "oom" and verdict == FITS] == []
    assert [verdict for outcome, verdict in verdicts if outcome == "fits" and verdict == DOES_NOT_FIT] == []
    tight = [result for _, result, *_ in all_cases() if result.verdict == TIGHT]
    assert len(tight) <= 5  # three while ranges ended 13 % above, and not 16 %
    assert all(result.peak.device_bytes > 0.8 * result.usable_bytes for result in tight)


@pytest.mark.sweep
def test_the_measured_peaks_lie_in_the_predicted_range() -> None:
    for job, result, measured, _ in ran():
        off = measured["peak_bytes"] - counted_bytes(result)
        assert result.peak.low_bytes <= result.peak.device_bytes + off <= result.peak.high_bytes, job.name


@pytest.mark.sweep
def test_the_time_of_a_step_is_near() -> None:
    """Rates were derived from loads that last, under which the clock is lower than in the three steps here: 8 %."""
    errors = sorted(abs(ours / theirs - 1) for ours, theirs in (own.seconds for own in ran()))
    assert errors[len(errors) // 2] <= 0.10
    assert errors[9 * len(errors) // 10] <= 0.16


@pytest.mark.sweep
def test_of_two_jobs_the_slower_one_is_known() -> None:
    """Pairs that differ by a quarter or more, also in the model."""
    times = [own.seconds for own in ran()]
    pairs = [(a, b) for a in times for b in times if b[1] >= 1.25 * a[1]]
    right = sum(b[0] > a[0] for a, b in pairs)
    assert right >= 0.98 * len(pairs)
