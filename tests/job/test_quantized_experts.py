"""Stacked weights of experts in few bits: what goes with them, and how many bytes they are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import fit
from vramplan.errors import InputError
from vramplan.job.file import build_job

pytestmark = pytest.mark.plain

LORA: dict[str, Any] = {"kind": "lora", "rank": 8, "targets": ["q_proj"]}
BITS = {"nf4": 4 + 32 / 64, "int8": 8 + 32 * (2 / 2048 + 1 / 768) / 3}
"""Of a weight of Qwen3 30B-A3B: 4 bits and fp32 for each 64, or 8 bits and fp32 for each row: rows of two matrices are
2048 wide, those of the third 768."""


def job(**keys: Any) -> Any:
    """A job with quantized experts."""
    plain = {"model": "qwen3-30b-a3b", "gpu": "h100", "micro_batch_size": 1, "sequence_length": 64}
    return build_job({**plain, "adapter": LORA, "quantization": "nf4", "quantized_experts": True, **keys})


@pytest.mark.sweep(2)
@pytest.mark.closed_form
@pytest.mark.parametrize("quantization", list(BITS))
def test_experts_are_as_many_bytes_as_their_bits(quantization: str) -> None:
    def weights(*more: str) -> int:
        words = ("--quantization", quantization, "--seq", 64, "--micro-batch", 1, "--checkpointing", "full")
        answer = fit("--model", "qwen3-30b-a3b", "--gpu", "h100", "--targets", "q_proj", *words, *more)
        return int(next(part["bytes"] for part in answer["components"] if part["name"] == "weights"))

    experts = 48 * 128 * 3 * 2048 * 768
    assert weights() - weights("--quantized-experts") == pytest.approx(
        experts * (16 - BITS[quantization]) / 8, rel=1e-3
    )


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"quantization": None}, "quantizes nothing"),
        ({"quantization": "gptq-int4"}, "says nothing of gptq-int4"),
        ({"model": "qwen3-8b"}, "has no experts"),
    ],
)
def test_what_has_no_experts_in_few_bits_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        job(**keys)
