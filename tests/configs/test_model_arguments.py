"""How a trainer of TRL loads a model that it is given the name of: `model_init_kwargs`."""

from __future__ import annotations

import pytest

from tests.configs.meant import holds, job
from vramplan.errors import InputError

SCRIPT = """
    import torch
    from transformers import BitsAndBytesConfig
    from trl import GRPOConfig, GRPOTrainer

    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    args = GRPOConfig(
        per_device_train_batch_size=4, max_completion_length=256, max_prompt_length=256,
        model_init_kwargs={},
    )
    GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args, reward_funcs=[own])
"""


@pytest.mark.parametrize(
    ("words", "quantization"),
    [
        ('{"dtype": torch.bfloat16, "quantization_config": four}', "nf4-double"),
        ('{"dtype": torch.bfloat16, **({"quantization_config": four} if True else {})}', "nf4-double"),
        ('{"dtype": torch.bfloat16, **({"quantization_config": four} if False else {})}', None),
        ("dict(dtype=torch.bfloat16, load_in_8bit=True)", "int8"),
        ("dict(dtype=torch.bfloat16, quantization_config=None)", None),
    ],
)
def test_a_trainer_loads_quantized_weights(words: str, quantization: str | None) -> None:
    found = job(SCRIPT.replace("model_init_kwargs={}", f"model_init_kwargs={words}"), "grpo.py")
    holds(found, model="qwen2.5-0.5b", quantization=quantization)


def test_so_it_does_where_a_file_says_it() -> None:
    text = "model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_length: 512\nuse_peft: true\nmodel_init_kwargs:\n  {}\n"
    found = job(text.format("quantization_config: {load_in_4bit: true, bnb_4bit_quant_type: nf4}"), "sft.yaml")
    holds(found, quantization="nf4")
    holds(job(text.format("load_in_8bit: true"), "sft.yaml"), quantization="int8")


def test_a_dictionary_takes_the_items_of_another() -> None:
    text = SCRIPT.replace("args = GRPOConfig(", 'own = {"dtype": "float32"}\n    args = GRPOConfig(')
    words = '{"dtype": "float16", **own}'
    found = job(text.replace("model_init_kwargs={}", f"model_init_kwargs={words}"), "grpo.py")
    holds(found, weight_dtype="fp32")


FLAT = """
    model: Qwen/Qwen2.5-0.5B
    max_seq_len: 512
    per_device_train_batch_size: 2
    gradient_accumulation_steps: 4
    use_lora: true
    lora_r: 8
    lora_target_modules: all
    task_type: CAUSAL_LM
    optimizer: adamw
    dataset_cfg: own.yaml
    prompt_type: chat
    limit: 100
"""


def test_a_file_of_flat_settings_has_names_of_its_own() -> None:
    found = job(FLAT, "sft.yaml")
    holds(found, model="qwen2.5-0.5b", sequence_length=512, optimizer="adamw", adapter__rank=8, quantization=None)
    held = job(FLAT.replace("use_lora: true", "use_qlora: true").replace("model:", "model_path:"), "sft.yaml")
    holds(held, model="qwen2.5-0.5b", adapter__kind="lora", quantization="nf4")


def test_a_file_of_training_settings_is_not_passed_over() -> None:
    with pytest.raises(InputError, match=r"train_config.*is not understood"):
        job(f"{FLAT}    train_config: own.yaml\n", "sft.yaml")


def test_the_trainers_own_setting_takes_its_own_words() -> None:
    with pytest.raises(InputError, match="'adamw' is not a known optimizer"):
        job(FLAT.replace("optimizer:", "optim:"), "sft.yaml")
