"""Margins around a peak, by what is known of the run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.job import build_job
from vramplan.planner import bands
from vramplan.planner.judge import Judge

ON_ONE: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100-80gb", "sequence_length": 512, "micro_batch_size": 1}
FEW_BITS: dict[str, Any] = {**ON_ONE, "adapter": {"kind": "lora"}, "quantization": "nf4", "allocator": "simulate"}


def margin_of(job: dict[str, Any]) -> bands.Margin:
    return Judge(build_job(job)).simulated_margin


@pytest.mark.contract
def test_weights_of_few_bits_have_the_margin_of_others_on_one_device() -> None:
    """How they are loaded is simulated (docs/allocator.md), whichever program does it."""
    assert margin_of(FEW_BITS) == bands.ALONE
    assert margin_of({**FEW_BITS, "parallel": {"data": 2, "sharding": "ddp"}}) == bands.ALONE
    assert margin_of({**FEW_BITS, "runtime": "unsloth"}) == margin_of({**FEW_BITS, "runtime": "litgpt"}) == bands.ALONE


@pytest.mark.contract
def test_the_range_of_an_answer_has_that_margin() -> None:
    peak = answer(build_job(FEW_BITS)).peak
    outside = peak.device_bytes - peak.reserved_bytes
    above = -(-peak.reserved_bytes * (100 + bands.ALONE.above) // 100)
    assert peak.high_bytes == above + outside


@pytest.mark.contract
def test_a_doubt_makes_the_range_half_as_wide_again() -> None:
    found = bands.simulated(several=False, compiled=False, doubted=True)
    assert 0 <= found.below * 2 - bands.ALONE.below * 3 < 2
    assert 0 <= found.above * 2 - bands.ALONE.above * 3 < 2
