"""Axolotl's fused LoRA: what a job may ask for, and what is saved."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.options import words
from vramplan.replay.models.lora_kernels import EVERY, FUSED, STOPS

LORA: dict[str, Any] = {"kind": "lora", "targets": ["all-linear"], "rank": 8, "kernels": [*EVERY]}
LLAMA: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100", "precision": "pure-bf16", "sequence_length": 512}
STORED: dict[str, Any] = {"micro_batch_size": 2, "activation_checkpointing": "none", "gradient_accumulation_steps": 1}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "adapter", "runs", "said"),
    [
        ({}, {}, EVERY, None),
        ({"quantization": "nf4-double"}, {}, EVERY, None),
        ({}, {"targets": ["q_proj", "v_proj"]}, (), "mlp, qkv, o changes nothing: not all of its layers"),
        ({}, {"targets": ["q_proj", "k_proj", "v_proj"]}, ("qkv",), "mlp, o changes nothing"),
        ({"model": "mixtral-8x7b"}, {}, ("qkv", "o"), "mlp changes nothing"),
        ({"model": "gpt2"}, {}, (), "adapter.kernels of gpt2 was never traced: PEFT's own layers are counted"),
        ({}, {"kind": "dora"}, (), "adapter.kernels is not modelled with dora"),
        ({"compile": True, **STORED}, {}, (), "adapter.kernels is not modelled in a compiled model"),
        ({"loss": "dpo"}, {}, (), "adapter.kernels is not modelled beside a reference model"),
        ({"parallel": {"data": 2, "sharding": "fsdp"}}, {}, EVERY, None),
        ({"parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}}, {}, (), "with parallel.fsdp_version 1"),
        ({"parallel": {"data": 2, "sharding": "fsdp"}, "optimizer": "adamw-8bit"}, {}, (), "parallel.fsdp_version 1"),
        ({"parallel": {"data": 2, "sharding": "zero3"}, "precision": "mixed-bf16"}, {}, EVERY, "stay whole until"),
        ({"parallel": {"data": 2, "sharding": "ddp"}}, {}, EVERY, None),
    ],
)
def test_what_does_not_run_is_told(
    keys: dict[str, Any], adapter: dict[str, Any], runs: tuple[str, ...], said: str | None
) -> None:
    one = build_job({**LLAMA, "adapter": {**LORA, **adapter}, **keys})
    assert one.adapter is not None
    assert one.adapter.kernels == runs
    assert [said in text for text in one.warnings if "adapter.kernels" in text] == ([True] if said else [])
    assert build_job(job_to_dict(one)).warnings == one.warnings


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"model": "phi-3-mini"}, "Axolotl stops at qkv, o of phi3"),
        ({"quantization": "int8"}, "Axolotl has no fused LoRA over int8 weights"),
        ({"precision": "amp-bf16", "weight_dtype": "fp32"}, "stop at weights in fp32 under amp-bf16"),
        ({"activation_checkpointing": "selective-op"}, "PyTorch stops where selective-op keeps a product"),
        ({"runtime": "torchtune"}, "Axolotl replaces no layers of llama under torchtune"),
        ({"adapter": {**LORA, "kernels": ["swiglu"]}}, "'swiglu' is not a known value"),
    ],
)
def test_where_axolotl_stops_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**LLAMA, "adapter": LORA, **keys})
    assert said in str(caught.value)


@pytest.mark.contract
def test_the_words_are_those_that_the_replay_knows_and_are_echoed() -> None:
    assert words.LORA_KERNELS == EVERY
    assert not set(FUSED) & set(STOPS)
    assert job_to_dict(build_job({**LLAMA, "adapter": LORA}))["adapter"]["kernels"] == [*EVERY]


@pytest.mark.closed_form
def test_each_function_saves_what_its_page_says() -> None:
    """Of feed-forward layers F wide and thin matrices of rank r, over N rows in 16 bits."""
    rows, inner, rank, blocks = 2 * 512, 8192, 8, 16

    def saved(*kernels: str) -> int:
        job = build_job({**LLAMA, **STORED, "adapter": {**LORA, "kernels": [*kernels]}})
        found = answer(job).peak.saved_bytes
        assert found is not None
        return found

    plain, thin = saved(), rows * rank * 2
    assert plain - saved("qkv") == blocks * 3 * thin
    assert plain - saved("o") == blocks * thin
    assert plain - saved("mlp") == blocks * (2 * rows * inner * 2 + 3 * thin)
    assert plain - saved(*EVERY) == blocks * (2 * rows * inner * 2 + 7 * thin)
