"""Recipes that hand dictionaries on: `**`, `.get` and entries by their keys are followed; nothing is run."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job, meant

pytestmark = pytest.mark.contract

RECIPES = """
    from megatron.bridge import AutoBridge
    from megatron.bridge.training.config import ConfigContainer, TrainingConfig

    class Words(dict):
        pass

    def tiny_pretrain_config(**user_kwargs) -> ConfigContainer:
        own: Words = {"path": "Qwen/Qwen3-0.6B", "tensor_model_parallel_size": 4, "recompute": user_kwargs.get("re", 1)}
        own["seq_length"] = 2 * own["tensor_model_parallel_size"] * 256
        return _made(**{**own, **user_kwargs})

    def machines_pretrain_config() -> ConfigContainer:
        return _made("Qwen/Qwen3-0.6B", **what_only_the_machine_knows())

    def _made(path, tensor_model_parallel_size=1, recompute=0, seq_length=4096, **more) -> ConfigContainer:
        bridge = AutoBridge.from_hf_pretrained(path)
        model = bridge.to_megatron_provider(load_weights=False)
        model.tensor_model_parallel_size = tensor_model_parallel_size
        if recompute:
            model.recompute_granularity = "full"
        return ConfigContainer(
            model=model,
            train=TrainingConfig(micro_batch_size=more.get("micro", 2), global_batch_size=32),
            dataset=GPTDatasetConfig(seq_length=seq_length),
            mixed_precision="bf16_mixed",
        )
    """


def test_a_recipe_hands_its_arguments_on() -> None:
    holds(
        job(RECIPES, "own.py"),
        model="qwen3-0.6b",
        sequence_length=2048,
        micro_batch_size=2,
        parallel__tensor=4,
        activation_checkpointing="full",
    )


def test_arguments_that_only_the_run_knows_leave_the_defaults_of_the_function() -> None:
    found = job(RECIPES, "own.py:machines_pretrain_config")
    holds(found, model="qwen3-0.6b", sequence_length=4096, parallel__tensor=None, activation_checkpointing="none")


@pytest.mark.parametrize("key", ["dataset.seq_length", "dataset.sequence_length", "model.seq_length"])
def test_the_length_of_a_file_that_changes_a_recipe_has_three_names(key: str) -> None:
    part, _, name = key.partition(".")
    text = f"train:\n  train_iters: 20\n  micro_batch_size: 1\nscheduler: {{}}\nlogger:\n  log_interval: 1\n{part}:\n"
    found = meant(f"{text}  {name}: 1024\n", "own.yaml", program="megatron-bridge")
    assert (found.job["sequence_length"], found.open.get("sequence_length")) == (1024, None)
