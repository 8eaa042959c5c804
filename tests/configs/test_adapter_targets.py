"""Targets of adapters in files, as PEFT takes them."""

from __future__ import annotations

import pytest

from tests.configs.meant import meant

TEXT = "base_model: {}\nsequence_len: 128\nmicro_batch_size: 1\nbf16: true\nadapter: lora\nlora_r: 8\n"
SHARED = ["q_proj", "shared_expert.gate_proj", "shared_expert.up_proj"]


@pytest.mark.parametrize(
    ("model", "targets", "named"),
    [
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", SHARED, True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", ["q_proj", "mlp.gate_proj", "mlp.up_proj"], False),  # the experts' own
        ("Qwen/Qwen1.5-MoE-A2.7B", SHARED, False),  # which PEFT does not convert
    ],
)
def test_a_shared_expert_that_peft_takes_for_all_is_told(model: str, targets: list[str], named: bool) -> None:
    found = meant(TEXT.format(model) + f"lora_target_modules: {targets}\n", "a.yaml")
    told = [note for note in found.notes if "tensors of all experts" in note]
    assert bool(told) == named
    if named:
        assert "shared_expert.gate_proj, shared_expert.up_proj" in told[0]
        assert "q_proj" not in told[0]


def test_a_head_by_its_older_name() -> None:
    text = "base_model: EleutherAI/pythia-1.4b\nsequence_len: 64\nmicro_batch_size: 1\nadapter: lora\nlora_r: 4\n"
    found = meant(
        text + "lora_target_modules: [query_key_value]\nlora_modules_to_save: [embed_in, embed_out]\n", "a.yml"
    )
    assert found.job["adapter"]["modules_to_save"] == ["embed_in", "lm_head"]
    assert any("embed_out is lm_head" in note for note in found.notes)


def test_a_model_beside_the_file_decides_which_targets_name_its_layers() -> None:
    """Scripts list the layers of several models; PEFT adapts those that the model has."""
    text = TEXT.format("/data/own-model") + "lora_target_modules: [q_proj, gate_proj, c_attn]\n"
    assert len(meant(text, "a.yml").job["adapter"]["targets"]) == 3
    found = meant(text, "a.yml", beside={"model": "gpt2"})
    assert found.job["adapter"]["targets"] == ["c_attn"]
    assert any("q_proj, gate_proj names no layer of gpt2" in note for note in found.notes)


TENSORS = "lora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]\n"


def test_tensors_of_experts_are_the_names_that_peft_takes_for_them() -> None:
    found = meant(TEXT.format("Qwen/Qwen3-30B-A3B") + "lora_target_modules: [q_proj]\n" + TENSORS, "a.yaml")
    assert found.job["adapter"]["targets"] == ["q_proj", "gate_proj", "up_proj", "down_proj"]
    alone = meant(TEXT.format("Qwen/Qwen3-30B-A3B") + TENSORS.replace("mlp.experts.gate_up_proj, ", ""), "a.yaml")
    assert alone.job["adapter"]["targets"] == ["down_proj"]
    trl = "model_name_or_path: Qwen/Qwen3-30B-A3B\nmax_length: 64\nuse_peft: true\nlora_target_modules: [q_proj]\n"
    assert meant(trl + TENSORS, "a.yaml").job["adapter"]["targets"][-1] == "down_proj"


@pytest.mark.parametrize(("more", "hint"), [("lora_target_modules: [q_proj]\n", "q_proj"), ("", "NAMES")])
def test_tensors_of_experts_without_such_names_are_asked_for(more: str, hint: str) -> None:
    found = meant(TEXT.format("google/gemma-4-26B-A4B") + more + TENSORS, "a.yaml")
    assert "targets" not in found.job["adapter"]
    assert f"--targets {hint}" in found.open["adapter.targets"]


def test_targets_that_a_script_chooses_by_itself_are_asked_for() -> None:
    text = "model_name_or_path: gpt2\nmax_length: 64\nuse_peft: true\nlora_r: 4\nlora_target_modules: {}\n"
    assert meant(text.format("[c_attn]"), "a.yaml").job["adapter"]["targets"] == ["c_attn"]
    found = meant(text.format("auto"), "a.yaml")
    assert "adapter.targets" in found.open
    assert "targets" not in found.job["adapter"]
