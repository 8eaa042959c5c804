"""What runs leave behind: records of Weights & Biases, and pages of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job, meant
from vramplan.errors import InputError

KEPT = """
_wandb: {value: {python_version: 3.11}}
_name_or_path: {value: meta-llama/Llama-3.1-8B}
architectures: {value: [LlamaForCausalLM]}
bf16: {value: true}
fsdp: {value: []}
deepspeed: {value: null}
gradient_accumulation_steps: {value: 4}
gradient_checkpointing: {value: true}
hidden_size: {value: 4096}
max_grad_norm: {value: 0.3}
max_length: {value: 20}
optim: {value: paged_adamw_8bit}
per_device_train_batch_size: {value: 2}
torch_dtype: {value: bfloat16}
use_cache: {value: true}
peft_config:
  value:
    default: {peft_type: LORA, r: 16, lora_alpha: 32, lora_dropout: 0.05, target_modules: [q_proj, v_proj]}
quantization_config: {value: {load_in_4bit: true, bnb_4bit_quant_type: nf4, bnb_4bit_use_double_quant: true}}
"""
ON_THE_HUB = """
---
license: apache-2.0
base_model: mistralai/Mistral-7B-v0.1
---
# A model

### Training hyperparameters

- learning_rate: 2e-05
- train_batch_size: 8
- eval_batch_size: 16
- num_devices: 4
- gradient_accumulation_steps: 2
- total_train_batch_size: 64
- optimizer: Use OptimizerNames.PAGED_ADAMW_8BIT with betas=(0.9,0.999) and epsilon=1e-08
"""


def test_what_weights_and_biases_kept_is_read() -> None:
    read = meant(KEPT, "config.yaml")
    found = {value.key: value.value for value in read.values}
    holds(found, model="llama-3.1-8b", micro_batch_size=2, gradient_accumulation_steps=4, optimizer="adamw-8bit-paged")
    holds(found, adapter__rank=16, adapter__targets=["q_proj", "v_proj"], adapter__alpha=32, max_gradient_norm=0.3)
    holds(found, quantization="nf4-double", precision="amp-bf16", weight_dtype="bf16", activation_checkpointing="full")
    assert "sequence_length" in read.open  # 20 is that of generation
    assert not read.not_understood
    assert "use_cache" not in found


def test_checkpoints_of_a_run_of_ms_swift_are_asked_for() -> None:
    text = KEPT.replace("gradient_checkpointing: {value: true}", "gradient_checkpointing: {value: false}")
    assert job(text, "config.yaml")["activation_checkpointing"] == "none"
    assert "activation_checkpointing" in meant(text + "tuner_type: {value: full}\n", "config.yaml").open


def test_a_length_that_trl_has_is_taken() -> None:
    text = KEPT.replace("max_length: {value: 20}", "max_length: {value: 512}\npacking: {value: true}")
    holds(job(text, "config.yaml"), sequence_length=512, packing=True)


def test_values_that_older_records_print_are_read() -> None:
    text = KEPT.replace("wandb: {value: {python_version: 3.11}}", "wandb: {desc: null, value: {}}\nwandb_version: 1")
    text = text.replace("{value: []}", "{desc: null, value: '[]'}").replace("{value: null}", "{value: 'None'}")
    assert job(text, "config.yaml") == job(KEPT, "config.yaml")


def test_an_adapter_that_is_not_modelled_is_refused() -> None:
    with pytest.raises(InputError, match="an adapter of ADAPTION_PROMPT is not modelled"):
        meant(KEPT.replace("LORA", "ADAPTION_PROMPT"), "config.yaml")


def test_a_page_says_the_batch_and_asks_for_the_rest() -> None:
    read = meant(ON_THE_HUB, "README.md")
    found = {value.key: value.value for value in read.values}
    holds(found, model="mistral-7b", micro_batch_size=8, gradient_accumulation_steps=2, optimizer="adamw-8bit-paged")
    holds(found, parallel__data=4, parallel__sharding="ddp", precision=None, activation_checkpointing=None)
    assert read.open.keys() >= {"precision", "activation_checkpointing", "sequence_length"}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("- mixed_precision_training: Native AMP", "precision", "amp-fp16"),
        ("- optimizer: Adam with betas=(0.9,0.999) and epsilon=1e-08", "optimizer", "adamw"),
        ("- optimizer: Use adafactor with betas=(0.9,0.999) and epsilon=1e-08", "optimizer", "adafactor"),
    ],
)
def test_lines_of_a_page(line: str, key: str, value: str) -> None:
    text = "\n".join(one for one in ON_THE_HUB.splitlines() if "optimizer" not in one)
    assert job(f"{text}\n{line}\n", "README.md")[key] == value


def test_the_file_of_axolotl_on_a_page_is_read() -> None:
    text = "# A model\n```yaml\nbase_model: gpt2\nsequence_len: 512\nmicro_batch_size: 2\nbf16: true\n```\n"
    read = meant(text, "README.md")
    assert read.program == "axolotl"
    assert next(value.sources[0].line for value in read.values if value.key == "micro_batch_size") == 5


def test_a_page_without_arguments_is_an_error() -> None:
    with pytest.raises(InputError, match="no page of a model with its training hyperparameters"):
        meant("# A model\n", "README.md")


def test_a_page_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(ON_THE_HUB.lstrip(), "utf-8")
    ran = run("fit", tmp_path / "README.md", "--gpu", "h100", "--seq", "512")
    assert (ran.code, "README.md: leaves precision open" in ran.err) == (2, True)
    words = ("--seq", "512", "--precision", "amp-bf16", "--checkpointing", "full")
    assert run("fit", tmp_path / "README.md", "--gpu", "8xb300", *words).code in (0, 3)


ADAPTER = """
{"alpha_pattern": {}, "base_model_name_or_path": "meta-llama/Llama-3.2-1B", "inference_mode": true, %s,
 "layers_to_transform": null, "peft_type": "%s", "task_type": "CAUSAL_LM"}
"""
"""The file that PEFT keeps beside the weights of an adapter."""


def test_the_file_beside_the_weights_of_an_adapter_says_the_model_and_the_adapter() -> None:
    """It says nothing of a step: that is asked for."""
    read = meant(ADAPTER % ('"r": 8, "lora_alpha": 4, "target_modules": ["q_proj"]', "LORA"), "adapter_config.json")
    holds(
        {value.key: value.value for value in read.values},
        model="llama-3.2-1b",
        adapter__kind="lora",
        adapter__rank=8,
        adapter__alpha=4,
        adapter__targets=["q_proj"],
    )
    for key in ("micro_batch_size", "sequence_length", "precision", "activation_checkpointing", "optimizer"):
        assert key in read.open, key
    found = job(ADAPTER % ('"num_virtual_tokens": 30', "PROMPT_TUNING"), "adapter_config.json")
    holds(found, adapter__kind="prompt-tuning", adapter__virtual_tokens=30)


def test_adapters_of_some_blocks_or_of_several_ranks_are_not_passed_over() -> None:
    lora = '"r": 8, "target_modules": ["q_proj"], "rank_pattern": {"q_proj": 4}'
    with pytest.raises(InputError, match=r"rank_pattern.*is not understood"):
        meant(ADAPTER % (lora, "LORA"), "adapter_config.json")


def test_a_record_of_an_adapter_beside_lora() -> None:
    kept = KEPT.replace("peft_type: LORA, r: 16", "peft_type: PeftType.VERA, r: 128")
    holds(job(kept, "config.yaml"), adapter__kind="vera", adapter__rank=128, adapter__targets=["q_proj", "v_proj"])
