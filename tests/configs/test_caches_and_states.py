"""What programs return or keep beside a model: caches of keys and values, errors of compressed gradients."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_texts
from vramplan.configs.reading import Wanted

FACTORY = """
    model_name_or_path: meta-llama/Llama-3.2-1B
    stage: {stage}
    do_train: true
    finetuning_type: full
    dataset: texts
    template: llama3
    cutoff_len: 1024
    bf16: true
    disable_gradient_checkpointing: {off}
    use_cache: true
    use_kv_cache: true
"""


@pytest.mark.parametrize(
    ("stage", "off", "means"), [("sft", "true", True), ("sft", "false", None), ("dpo", "true", None)]
)
def test_llama_factory_returns_a_cache_without_checkpoints(stage: str, off: str, means: bool | None) -> None:
    """`use_kv_cache` is for generating: model_utils/kv_cache.py."""
    holds(job(FACTORY.format(stage=stage, off=off), "sft.yaml"), use_cache=means)


FOUNDRY = """
    max_seq_len: 2048
    model: {{name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12, max_seq_len: 2048, use_cache: {cache}}}
    tokenizer: {{name: EleutherAI/gpt-neox-20b}}
    train_loader: {{name: text, dataset: {{max_seq_len: 2048}}}}
    max_duration: 10ba
    global_train_batch_size: 64
    device_train_microbatch_size: 4
    fsdp_config: {{sharding_strategy: FULL_SHARD, activation_checkpointing: {checkpoints}}}
"""


@pytest.mark.parametrize(
    ("cache", "checkpoints", "told"), [("true", "true", True), ("true", "false", False), ("false", "true", False)]
)
def test_a_cache_of_mpt_outlives_its_checkpoints(cache: str, checkpoints: str, told: bool) -> None:
    found = meant(FOUNDRY.format(cache=cache, checkpoints=checkpoints), "mpt.yaml", devices=8)
    assert ("model.use_cache" in found.unmodelled) is told
    holds(job(FOUNDRY.format(cache=cache, checkpoints=checkpoints), "mpt.yaml", devices=8), use_cache=None)


@pytest.mark.parametrize(("name", "near"), [("OneBitAdam", "adam"), ("ZeroOneAdam", "adam"), ("OneBitLamb", "lamb")])
def test_deepspeeds_compressing_optimizers_are_asked_for(name: str, near: str) -> None:
    text = '{{"train_micro_batch_size_per_gpu": 8, "optimizer": {{"type": "{}"}}, "fp16": {{"enabled": true}}}}'
    found = meant(text.format(name), "ds.json")
    assert "optimizer" not in found.job
    assert f"--optimizer {near}" in found.open["optimizer"]
    holds(job(text.format("MuAdamW"), "ds.json"), optimizer="adamw")


def test_they_are_asked_for_in_a_file_that_a_training_file_names() -> None:
    ds = '{"optimizer": {"type": "OnebitAdam"}, "fp16": {"enabled": true}, "zero_optimization": {"stage": 1}}'
    text = "model_name_or_path: gpt2\nper_device_train_batch_size: 8\nfp16: true\ndeepspeed: ds.json\n"
    found = read_texts({"a.yaml": text, "ds.json": ds}, Wanted(program="training-arguments"))
    assert "optimizer" not in found.job
    assert found.open["optimizer"].startswith("OnebitAdam keeps the errors of its compression")


@pytest.mark.parametrize(
    ("params", "means"), [('"momentum": 0.9', "sgd-momentum"), ('"momentum": 0', "sgd"), ("", "sgd")]
)
def test_deepspeeds_sgd_has_a_state_with_momentum(params: str, means: str) -> None:
    text = f'{{"train_micro_batch_size_per_gpu": 8, "optimizer": {{"type": "SGD", "params": {{{params}}}}}}}'
    holds(job(text, "ds.json"), optimizer=means)
