"""Of which release a script in Python is, by arguments that later releases refuse, and what it loads by default."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs.meant import meant

SCRIPT = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
model = AutoModelForCausalLM.from_pretrained("{model}"{loaded})
settings = {kind}(output_dir="out", per_device_train_batch_size=2{more})
trainer = {trainer}(model=model, args=settings, train_dataset=rows{words})
trainer.train()
"""


def script(**parts: str) -> str:
    usual = {"model": "Qwen/Qwen2.5-0.5B", "loaded": "", "kind": "SFTConfig", "more": "", "trainer": "SFTTrainer"}
    return SCRIPT.format(**{**usual, "words": "", **parts})


PLAIN = {"kind": "TrainingArguments", "trainer": "Trainer"}
NEW = {"activation_checkpointing": "full", "precision": "amp-bf16"}
OLD = {"activation_checkpointing": "none", "precision": "fp32"}


@pytest.mark.parametrize(
    ("parts", "release", "expected"),
    [
        ({}, "1.16.0", NEW),
        ({"words": ", processing_class=tokenizer"}, "1.16.0", NEW),
        ({"words": ", tokenizer=tokenizer"}, "0.15.2", OLD),
        ({"words": ", dataset_text_field='text'"}, "0.15.2", OLD),
        ({"more": ", evaluation_strategy='steps'"}, "0.15.2", OLD),
        ({"more": ", max_seq_length=512"}, "0.19.1", {**OLD, "precision": "amp-bf16"}),
        ({"more": ", overwrite_output_dir=True"}, "0.25.0", NEW),
        ({"kind": "DPOConfig", "trainer": "DPOTrainer", "more": ", max_prompt_length=256"}, "0.25.0", NEW),
        (PLAIN, "5.23.0", {"optimizer_implementation": None, "precision": "pure-bf16"}),
        ({**PLAIN, "words": ", tokenizer=tokenizer"}, "4.53.3", {"optimizer_implementation": "foreach"}),
        ({**PLAIN, "more": ", no_cuda=False"}, "4.53.3", {"precision": "fp32"}),
    ],
)
def test_an_argument_that_is_gone_tells_the_release(
    parts: dict[str, str], release: str, expected: dict[str, Any]
) -> None:
    found = meant(script(**parts), "own.py")
    assert found.release == release
    assert {key: found.job.get(key) for key in expected} == expected
    told = [note for note in found.notes if "is taken until" in note]
    assert bool(told) == (release not in ("1.16.0", "5.23.0"))


def test_a_release_that_is_named_goes_before_it() -> None:
    found = meant(script(words=", tokenizer=tokenizer"), "own.py", version="1.16.0")
    assert (found.release, found.job["activation_checkpointing"]) == ("1.16.0", "full")
    assert not any("is taken until" in note for note in found.notes)


def test_unsloths_trainers_take_what_those_of_trl_have_no_more() -> None:
    text = script(words=", tokenizer=tokenizer, max_seq_length=512").replace(
        "AutoModelForCausalLM.from_pretrained(", "FastLanguageModel.from_pretrained(model_name="
    )
    assert meant("from unsloth import FastLanguageModel\n" + text, "own.py").release == "1.16.0"


QUANTIZED = ", quantization_config=BitsAndBytesConfig(load_in_4bit=True)"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"more": ", bf16=True"}, {"precision": "amp-bf16", "weight_dtype": None}),  # the checkpoint's, by the job
        ({"more": ", bf16=True, no_cuda=False"}, {"precision": "amp-bf16", "weight_dtype": "fp32"}),
        ({"more": ", fp16=True, no_cuda=False", "loaded": QUANTIZED}, {"weight_dtype": "fp16", "quantization": "nf4"}),
        ({"loaded": ", torch_dtype='auto'"}, {"precision": "pure-bf16"}),
        ({"loaded": ", torch_dtype='auto'", "more": ", no_cuda=False"}, {"precision": "pure-bf16"}),
        ({"model": "openai-community/gpt2"}, {"precision": "fp32"}),  # published in fp32
        ({"model": "someone/never-heard-of"}, {"precision": "fp32"}),
    ],
)
def test_what_from_pretrained_loads_where_nothing_is_said(parts: dict[str, str], expected: dict[str, Any]) -> None:
    found = meant(script(**PLAIN, **parts), "own.py").job
    assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("beside", "release"),
    [
        ("packing: true", "0.19.1"),
        ("dataset_text_field: text", "0.19.1"),
        ("beta: 0.1", "1.16.0"),  # of another trainer, whose scripts may have an argument of that name
        ("packing: true\nmax_length: 64", "1.16.0"),
        ("packing: true\nchat_template: own", "1.16.0"),  # of the handbook's scripts
    ],
)
def test_a_file_of_trl_that_has_two_arguments_of_an_old_configuration(beside: str, release: str) -> None:
    """trl 0.19.1, sft_config.py: checkpoints are off by default, and `max_seq_length` is gone in 0.20."""
    text = (
        "model_name_or_path: gpt2\ndataset_name: own\nmax_seq_length: 64\nper_device_train_batch_size: 1\nbf16: true\n"
    )
    found = meant(f"{text}{beside}\n", "a.yaml")
    assert (found.program, found.release) == ("trl", release)
    if release == "0.19.1":
        assert found.job["activation_checkpointing"] == "none"


def test_the_device_of_an_engine_tells_the_release() -> None:
    """trl 0.16.1, grpo_config.py: `vllm_device` is taken, the engine is a server, and bf16 is off by default."""
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 1\nnum_generations: 2\nmax_completion_length: 8\n"
    found = meant(f"{text}max_prompt_length: 8\nuse_vllm: true\nvllm_device: auto\n", "a.yaml")
    assert found.release == "0.16.1"
    assert "reserve" not in found.open
    assert found.job["precision"] == "fp32"
