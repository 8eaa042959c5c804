"""The step of an optimizer: kernels that are shorter than their launches, and the products of Muon."""

from __future__ import annotations

import pytest

from vramplan import fit
from vramplan.planner.time.fitted import LAUNCH_SECONDS

pytestmark = pytest.mark.closed_form

BASE = {"gpu": "h100", "micro_batch_size": 2, "gradient_accumulation_steps": 1, "activation_checkpointing": "none"}


def step_seconds(**keys: object) -> float:
    time = fit(**{**BASE, **keys}).time
    assert time is not None
    return time.shares["optimizer"] * time.step_seconds


def test_a_loop_over_tensors_launches_a_kernel_for_each() -> None:
    """GPT-2 has 148 tensors, of which 98 are vectors, whose 4 bytes an element take no time beside a launch."""
    keys = {"model": "gpt2", "sequence_length": 512, "optimizer": "sgd"}
    each = {how: step_seconds(**keys, optimizer_implementation=how) for how in ("foreach", "for-loop")}
    waiting = each["for-loop"] - each["foreach"]
    assert 98 * LAUNCH_SECONDS * 0.9 < waiting < 148 * LAUNCH_SECONDS


def test_muon_multiplies_each_matrix_with_itself_five_times() -> None:
    """Of a matrix of s rows and l columns 5 (4 s s l + 2 s s s) operations, at the rate of products."""
    keys = {"model": "llama-3.2-1b", "sequence_length": 1024}
    hidden, wide, heads = 2048, 8192, 512
    sizes = [(hidden, hidden)] * 2 + [(heads, hidden)] * 2 + [(hidden, wide)] * 3
    flops = 16 * sum(5 * (4 * short**2 * long + 2 * short**3) for short, long in sizes)
    best = 0.803 * 0.765 * 989e12  # of an H100: the share of the best product, and of products in a step
    alone = step_seconds(**keys, optimizer="muon")
    bytes_alone = step_seconds(**keys, optimizer="adamw", optimizer_implementation="foreach")
    assert flops / best < alone < 1.5 * flops / best + bytes_alone
    among = {"parallel": {"data": 8, "sharding": "fsdp"}}
    assert step_seconds(**keys, **among, optimizer="muon") == pytest.approx(alone / 8, rel=0.1)
