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
def test_weights_of_few_bits_have_the_margin_of_their_class_on_one_device() -> None:
    plain = {key: value for key, value in FEW_BITS.items() if key != "quantization"}
    assert margin_of(plain) == bands.ALONE
    assert margin_of(FEW_BITS) == bands.ALONE_FEW_BITS
    assert margin_of({**FEW_BITS, "parallel": {"data": 2, "sharding": "ddp"}}) == bands.ALONE_FEW_BITS


@pytest.mark.contract
def test_a_program_that_loads_them_itself_has_the_margin_of_others() -> None:
    assert margin_of({**FEW_BITS, "runtime": "litgpt"}) == bands.ALONE
    assert margin_of({**FEW_BITS, "runtime": "unsloth"}) == bands.ALONE_FEW_BITS


@pytest.mark.contract
def test_several_devices_have_their_own_margin_whatever_their_weights_are() -> None:
    several = bands.simulated(several=True, compiled=False, doubted=False)
    assert bands.simulated(several=True, compiled=False, doubted=False, quantized=True) == several == bands.SEVERAL


@pytest.mark.contract
def test_a_compiled_step_over_weights_of_few_bits_has_the_wider_of_two_at_each_end() -> None:
    found = bands.simulated(several=False, compiled=True, doubted=False, quantized=True)
    assert found == bands.ALONE_COMPILED.widest(bands.ALONE_FEW_BITS)


@pytest.mark.contract
def test_the_range_of_an_answer_has_that_margin() -> None:
    peak = answer(build_job(FEW_BITS)).peak
    outside = peak.device_bytes - peak.reserved_bytes
    above = -(-peak.reserved_bytes * (100 + bands.ALONE_FEW_BITS.above) // 100)
    assert peak.high_bytes == above + outside


@pytest.mark.contract
def test_a_doubt_widens_no_range_that_has_room_for_programs_of_users() -> None:
    found = bands.simulated(several=False, compiled=False, doubted=True, quantized=True)
    assert found == bands.ALONE_FEW_BITS
    assert bands.simulated(several=False, compiled=False, doubted=True).above > bands.ALONE.above
