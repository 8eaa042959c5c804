"""What the name or the config.json of a checkpoint says of its weights, and what a job makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from vramplan.catalog.models import find_model
from vramplan.job import build_any_job
from vramplan.results import FitResult

pytestmark = pytest.mark.contract

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}


def fit(**keys: Any) -> FitResult:
    """The answer about a job with these keys."""
    return answer(build_any_job(keys))


def quantized(result: FitResult) -> tuple[Any, Any]:
    """The quantization and the kind of the adapter of an answer."""
    adapter = result.job["adapter"]
    return result.job["quantization"], adapter and adapter["kind"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("unsloth/llama-3-8b-bnb-4bit", "nf4-double"),
        ("unsloth/Llama-3.2-1B-unsloth-bnb-4bit", "nf4-double"),
        ("someone/Llama-3.2-1B-bnb-4bit", "nf4"),
        ("someone/Llama-3.2-1B-4bit", "nf4"),
        ("someone/Llama-3.2-1B-bnb-8bit", "int8"),
        ("TheBloke/Llama-2-7B-GPTQ", "gptq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "int8"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "gptq-int4"),
        ("ISTA-DASLab/Llama-2-7b-AQLM-2Bit-1x16-hf", "gptq-int4"),
    ],
)
def test_a_name_says_how_the_weights_are_quantized(name: str, word: str) -> None:
    _, told = find_model(name)
    assert [one.value for one in told if one.key == "quantization"] == [word]
    assert quantized(fit(model=name, gpu="a100-80gb")) == (word, "lora")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "the fp8 of the checkpoint is dequantized, to be trained"),
        ("bartowski/Llama-3.2-3B-Instruct-GGUF", "Transformers dequantizes GGUF"),
        ("mlx-community/Llama-3.2-3B-Instruct-4bit", "PyTorch does not load files of MLX"),
    ],
)
def test_weights_that_are_not_trained_as_they_are_count_whole_which_is_told(name: str, why: str) -> None:
    result = fit(model=name, gpu="h100")
    assert quantized(result) == (None, None)
    assert any(why in one for one in result.warnings)


def test_a_whole_checkpoint_says_nothing() -> None:
    for name in ("NousResearch/Meta-Llama-3-8B", "someone/Llama-3.2-1B-Instruct"):
        assert all(one.key != "quantization" for one in find_model(name)[1])
        assert quantized(fit(model=name, gpu="h100")) == (None, None)


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-double"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, "nf4"),
        ({"load_in_8bit": True}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-int4"),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "gptq-int4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, None),
        ({"quant_method": "compressed-tensors"}, None),
    ],
)
def test_a_config_says_how_the_weights_are_quantized(written: dict[str, Any], word: str | None, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, "quantization_config": written}), "utf-8")
    result = fit(model=str(path), gpu="a100-80gb")
    assert quantized(result) == (word, word and "lora")


@pytest.mark.parametrize(
    ("skipped", "told"),
    [(None, None), (["lm_head"], None), (["lm_head", "model.layers.0.mlp", "model.layers.3.self_attn"], "2 modules")],
)
def test_layers_that_a_checkpoint_keeps_in_16_bits_are_told(
    skipped: list[str] | None, told: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    written = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": skipped}
    path.write_text(json.dumps({**SMALL, "quantization_config": written}), "utf-8")
    bases = [one.why for one in fit(model=str(path), gpu="a100-80gb").assumptions if one.key == "quantization"]
    assert any("stay in 16 bits" in basis for basis in bases) == (told is not None)
    assert told is None or any(told in basis for basis in bases)


def test_a_name_says_that_some_layers_stay_in_16_bits() -> None:
    name = "unsloth/Llama-3.2-1B-unsloth-bnb-4bit"
    bases = [one.why for one in fit(model=name, gpu="t4").assumptions if one.key == "quantization"]
    assert any("some layers of such a checkpoint stay in 16 bits" in basis for basis in bases)


def test_the_job_goes_before_the_checkpoint() -> None:
    name = "unsloth/llama-3-8b-bnb-4bit"
    assert quantized(fit(model=name, gpu="a100-80gb", quantization=None)) == (None, None)
    assert quantized(fit(model=name, gpu="a100-80gb", quantization="int8", adapter={"kind": "dora"})) == (
        "int8",
        "dora",
    )
    assert quantized(fit(model=name, gpu="a100-80gb", adapter={"kind": "dora"})) == ("nf4-double", "dora")


def test_a_quantized_checkpoint_is_answered_as_the_same_options_are() -> None:
    named = fit(model="unsloth/llama-3-8b-bnb-4bit", gpu="t4", micro_batch_size=1)
    asked = fit(model="llama-3-8b", gpu="t4", micro_batch_size=1, quantization="nf4-double", adapter={"kind": "lora"})
    assert named.peak == asked.peak


def test_a_program_that_converts_checkpoints_has_whole_ones() -> None:
    assert quantized(fit(model="unsloth/llama-3-8b-bnb-4bit", gpu="h100", runtime="torchtune")) == (None, None)
