"""Explain knows what is trained: the states of adapters and quantized weights, and why their tensors live."""

from __future__ import annotations

import pytest

from tests.cli.running import run, valid
from vramplan.answers.explanation import explain
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.job import build_job

SMALL = ("-m", "gpt2", "-g", "a100", "--seq", "64", "--micro-batch", "1", "--steps", "1")


def test_what_layers_share_that_are_quantized_twice_is_a_state() -> None:
    ran = run("explain", *SMALL, "--adapter", "lora", "--quantization", "nf4-double", "--format", "json")
    assert ran.code == 0, ran.err
    assert "quantization.code" in ran.out


@pytest.mark.sweep(24)
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
        "--trained-blocks lisa:8",
        "--teacher-logprobs 4 --adapter lora --checkpointing full",
        *(f"--qat {name}" for name in ("int4-mslk-fp8", "mxfp4 --precision pure-bf16")),
        *(f"--loss {name} --checkpointing full" for name in ("orpo", "cpo", "simpo", "reward", "grpo")),
    ],
)
def test_what_is_trained_is_explained_to_the_byte(options: str) -> None:
    """The states sum to those of the replay, which the program itself checks, and every reason is a documented one."""
    ran = run("explain", *SMALL, *options.split(), "--format", "json")
    assert ran.code == 0, ran.err
    answer = valid("explain", ran.document)
    weights = next(state for state in answer["states"] if state["component"] == "weights")
    assert sum(row["total_bytes"] for row in weights["tensors"]) == weights["bytes"]


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    "options",
    [
        "--model mixtral-8x7b --targets all-linear --precision pure-bf16 --checkpointing none",
        "--model qwen3-30b-a3b --targets all-linear --precision amp-bf16 --checkpointing full",
        "--model deepseek-v2-lite --targets gate_proj,up_proj,gate --precision fp32 --checkpointing sqrt",
        "--model deepseek-v2-lite --targets all-linear --precision amp-bf16 --weight-dtype bf16",
        "--model resnet-50 --targets convolution --precision amp-bf16",
    ],
)
def test_low_rank_paths_over_experts_and_convolutions_are_named(options: str) -> None:
    words = options.split()
    sizes = [] if "resnet-50" in words else ["--seq", "64"]
    out = run("explain", *words, "--adapter", "lora", "--gpu", "8000 GiB", "--micro-batch", "1", *sizes)
    assert out.code == 0, out.err
    assert "lora_A" in out.out


LONG = ("llava_next", "idefics3", "smolvlm")  # whose images have more tokens than a text has by default
SIZES = {
    "deepseek_v2": {"experts": {"active": 2, "intermediate_size": 1408}},
    **{model_type: {"max_positions": 4096} for model_type in LONG},
}  # what a configuration class has no default of


@pytest.mark.sweep(99)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_model_type_is_explained(model_type: str) -> None:
    """Each tensor that is saved has a reason in the rule of its operator."""
    model = {"family": model_type, **SIZES.get(model_type, {})}
    size = {"sequence_length": 4096} if model_type in LONG else {}
    job = build_job({"model": model, "gpu": "8000 GiB", "micro_batch_size": 1, **size})
    assert explain(job, block=0).sections
