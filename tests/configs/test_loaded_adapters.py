"""Scripts that go on training an adapter, and what PEFT's configuration says of single layers."""

from __future__ import annotations

import json

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

DPO = """
    from peft import LoraConfig, PeftModel
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer

    base = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", dtype="bfloat16")
    model = PeftModel.from_pretrained(base, "out/sft", is_trainable=True)
    args = DPOConfig(per_device_train_batch_size=2, max_length=512, bf16=True)
    DPOTrainer(model=model, ref_model=None, args=args, train_dataset=pairs).train()
"""


def test_an_adapter_that_is_loaded_is_trained_and_asked_for() -> None:
    found = meant(DPO, "dpo.py")
    values = {value.key: value.value for value in found.values}
    holds(values, model="llama-3.2-1b", adapter__kind="lora", weight_dtype="bf16", dpo_reference="adapter-off")
    assert {"adapter.rank", "adapter.targets"} <= set(found.open)


@pytest.mark.parametrize(
    "load",
    [
        'AutoPeftModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B", is_trainable=True)',
        'PeftModel.from_pretrained(base, "out/sft")',  # which nothing merges: else nothing were trained
    ],
)
def test_so_is_one_of_another_spelling(load: str) -> None:
    text = DPO.replace('PeftModel.from_pretrained(base, "out/sft", is_trainable=True)', load)
    found = meant(text, "dpo.py")
    assert found.job["adapter"]["kind"] == "lora"
    assert "adapter.rank" in found.open


def test_a_merged_adapter_leaves_the_whole_model() -> None:
    text = DPO.replace(", is_trainable=True)\n", ").merge_and_unload()\n")
    holds(job(text, "dpo.py"), adapter__kind=None, dpo_reference="model")


def test_an_adapter_that_is_made_goes_before_one_that_may_be_loaded() -> None:
    text = DPO.replace("ref_model=None,", 'peft_config=LoraConfig(r=4, target_modules=["q_proj"]),')
    holds(job(text, "dpo.py"), adapter__rank=4, adapter__targets=["q_proj"])


def test_a_reference_model_beside_an_adapter_is_one() -> None:
    text = DPO.replace("ref_model=None", "ref_model=AutoModelForCausalLM.from_pretrained(NAME)")
    holds(job(text, "dpo.py"), adapter__kind="lora", dpo_reference="model")


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ('"meta-llama/Llama-3.2-1B", dtype="bfloat16"', ""),
        ('"meta-llama/Llama-3.2-1B-Instruct"', ""),  # of the same sizes
        ('"meta-llama/Llama-3.2-3B"', "a copy of the trained model is counted"),
        ('"out/sft"', "a copy of the trained model is counted"),
        ('"meta-llama/Llama-3.2-1B", load_in_4bit=True', "of other types"),
    ],
)
def test_a_reference_that_is_another_model_is_told(load: str, told: str) -> None:
    made = f"beside = AutoModelForCausalLM.from_pretrained({load})\n    args ="
    text = DPO.replace("args =", made, 1).replace("ref_model=None", "ref_model=beside")
    assert told in meant(text, "dpo.py").unmodelled.get("ref_model", "")
    assert ("ref_model" in meant(text, "dpo.py").unmodelled) == bool(told)


def test_a_reference_that_an_option_names_is_told_too() -> None:
    line = (
        "llamafactory-cli train --stage dpo --model_name_or_path Qwen/Qwen3-4B --template qwen3 --finetuning_type full"
    )
    same = read_texts({"run.sh": f"{line} --ref_model Qwen/Qwen3-4B\n"}, Wanted())
    assert (same.job["dpo_reference"], "ref_model" in same.unmodelled) == ("model", False)
    assert "ref_model" in read_texts({"run.sh": f"{line} --ref_model Qwen/Qwen3-8B\n"}, Wanted()).unmodelled
    own = "python sft.py --model_name_or_path gpt2 --max_length 64 --bf16 --output_dir o --ref_model gpt2-large\n"
    assert "none is counted" in read_texts({"run.sh": own}, Wanted()).unmodelled["ref_model"]


SFT = """
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    adapter = LoraConfig(r=8, target_modules=["q_proj"], {})
    SFTTrainer("Qwen/Qwen2.5-0.5B", args=SFTConfig(per_device_train_batch_size=1), peft_config=adapter)
"""


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lora_bias=True", "lora_config.lora_bias"),
        ("exclude_modules=own()", "lora_config.exclude_modules"),
    ],
)
def test_what_a_configuration_says_of_single_layers_is_told(word: str, key: str) -> None:
    found = meant(SFT.format(word), "sft.py")
    assert key in found.unmodelled
    assert found.job["adapter"]["rank"] == 8


@pytest.mark.parametrize(
    ("word", "key"), [("layers_to_transform=[0, 1]", "layers_to_transform"), ('rank_pattern={"q_proj": 16}', "rank_p")]
)
def test_adapters_of_some_blocks_or_of_several_ranks_are_not_passed_over(word: str, key: str) -> None:
    with pytest.raises(InputError, match=rf"{key}.*is not understood"):
        meant(SFT.format(word), "sft.py")


def test_what_is_off_there_is_not() -> None:
    found = meant(SFT.format("lora_bias=False, rank_pattern={}, layers_to_transform=None"), "sft.py")
    assert not [key for key in found.unmodelled if key.startswith("lora_config")]


def test_biases_of_the_model_are_another_word_than_those_of_the_adapter() -> None:
    holds(job(SFT.format('bias="all", lora_bias=True'), "sft.py"), adapter__bias="all")


def test_the_file_beside_the_weights_tells_the_same() -> None:
    kept = {
        "peft_type": "LORA",
        "base_model_name_or_path": "Qwen/Qwen2.5-0.5B",
        "r": 8,
        "target_modules": ["q_proj"],
        "lora_bias": True,
        "rank_pattern": {},
        "layers_to_transform": None,
    }
    found = meant(json.dumps(kept), "adapter_config.json")
    assert "lora_config.lora_bias" in found.unmodelled
