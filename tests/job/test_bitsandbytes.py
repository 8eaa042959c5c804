"""The key `bitsandbytes`: which releases it takes, beside what, and what a runtime says of it."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.setups import setup_of
from vramplan.replay.techniques.bitsandbytes import NEWEST
from vramplan.replay.techniques.quantized import four_bits
from vramplan.replay.tensors import BF16, FP16
from vramplan.values.job import ResolvedJob

QLORA: dict[str, Any] = {
    "model": "llama-2-7b",
    "gpu": "a100",
    "adapter": {"kind": "lora"},
    "quantization": "nf4",
    "precision": "pure-bf16",
}


def job(**keys: Any) -> ResolvedJob:
    built = build_job({**QLORA, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def test_nothing_said_is_the_newest_and_echoed_as_nothing() -> None:
    one = job()
    assert one.bitsandbytes is None
    assert job_to_dict(one)["bitsandbytes"] is None
    assert four_bits(BF16, nested=False) == four_bits(BF16, nested=False, bitsandbytes=NEWEST)


def test_a_release_is_echoed_and_fed_back() -> None:
    one = job(bitsandbytes="0.43.0")
    again = build_job(job_to_dict(one))
    assert isinstance(again, ResolvedJob)
    assert (one.bitsandbytes, again.bitsandbytes) == ("0.43.0", "0.43.0")
    assert setup_of(one, "none", accumulates=False).bitsandbytes == "0.43.0"


@pytest.mark.parametrize(
    ("release", "stored", "keeps", "at_once"),
    [
        ("0.41.1", FP16, True, False),
        ("0.42.0", FP16, True, False),
        ("0.43.0", BF16, True, False),
        ("0.43.1", BF16, True, False),
        ("0.43.2", BF16, False, False),
        ("0.49.2", BF16, False, False),
        ("0.50.0", BF16, False, True),
    ],
)
def test_where_releases_differ(release: str, stored: Any, keeps: bool, at_once: bool) -> None:
    bits = four_bits(BF16, nested=True, bitsandbytes=release)
    assert (bits.stored, bits.keeps_input, bits.at_once) == (stored, keeps, at_once)
    assert four_bits(BF16, nested=True, bitsandbytes=release, quantized_from=FP16).stored is FP16


def test_litgpt_has_a_release_of_its_own_and_quantizes_fp16() -> None:
    one = job(runtime="litgpt", precision="pure-bf16")
    assert one.bitsandbytes == "0.49.2"
    told = {assumption.key: assumption.why for assumption in one.assumptions}
    assert told["bitsandbytes"].startswith("the default of the litgpt runtime")
    assert setup_of(one, "none", accumulates=False).quantized_from == "fp16"
    assert job(runtime="litgpt", bitsandbytes="0.41.1").bitsandbytes == "0.41.1"
    plain = build_job({"model": "llama-2-7b", "gpu": "a100", "runtime": "litgpt"})
    assert isinstance(plain, ResolvedJob)
    assert plain.bitsandbytes is None


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"bitsandbytes": "new"}, "'new' is no release"),
        ({"bitsandbytes": "0.43"}, "'0.43' is no release"),
        ({"bitsandbytes": "0.40.0"}, "0.40.0 is not modelled: its code was read from 0.41.1 to"),
        ({"bitsandbytes": "1.0.0"}, "1.0.0 is not modelled"),
        ({"bitsandbytes": "0.43.0", "quantization": None}, "0.43.0 multiplies no weights of this job"),
        ({"bitsandbytes": "0.43.0", "quantization": "gptq-int4"}, "says nothing of gptq-int4"),
        ({"bitsandbytes": "0.43.0", "quantization": "int8"}, "int8 is not modelled as 0.43.0 multiplies it"),
        ({"bitsandbytes": "0.42.0", "adapter": {"kind": "dora"}}, "dora is not modelled over weights of 0.42.0"),
        ({"bitsandbytes": "0.43.0", "runtime": "torchtune", "compile": True}, "says nothing of torchtune"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        job(**keys)
    assert told in "; ".join(f"{one.key}: {one.message}" for one in caught.value.problems)
