"""Explain knows what is trained: the states of adapters and quantized weights, and why their tensors live."""

from __future__ import annotations

import pytest

from tests.cli.running import run, valid

SMALL = ("-m", "gpt2", "-g", "a100", "--seq", "64", "--micro-batch", "1", "--steps", "1")


@pytest.mark.parametrize(
    "options",
    [
        "--frozen embeddings,layers.0-5 --checkpointing full",
        "--adapter lora --targets all-linear --checkpointing full",
        "--adapter dora --checkpointing every:2",
        "--adapter lora --adapter-dropout 0.1 --checkpointing every:2",
        "--adapter ia3 --checkpointing none --precision pure-bf16",
        "--adapter lora --modules-to-save ln_1 --checkpointing none --weight-dtype bf16",
        "--adapter lora --quantization nf4-double --checkpointing full",
        "--adapter lora --quantization int8 --checkpointing none",
        "--adapter dora --quantization int8 --checkpointing none",
        "--adapter ia3 --quantization nf4 --checkpointing full",
        "--adapter lora --quantization gptq-int4 --checkpointing none --precision pure-fp16",
    ],
)
def test_what_is_trained_is_explained_to_the_byte(options: str) -> None:
    """The states sum to those of the replay, which the program itself checks, and every reason is a documented one."""
    ran = run("explain", *SMALL, *options.split(), "--format", "json")
    assert ran.code == 0, ran.err
    answer = valid("explain", ran.document)
    weights = next(state for state in answer["states"] if state["component"] == "weights")
    assert sum(row["total_bytes"] for row in weights["tensors"]) == weights["bytes"]
