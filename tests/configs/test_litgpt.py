"""Files of LitGPT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.configs.meant import holds, job, meant, together
from vramplan.errors import InputError

FULL = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
precision: bf16-true
devices: {devices}
num_nodes: 1
train:
  global_batch_size: 32
  micro_batch_size: 2
  max_seq_length: 512
  epochs: 1
optimizer:
  class_path: torch.optim.AdamW
  init_args:
    lr: 0.0002
"""
LORA = FULL + "lora_r: 16\nlora_query: true\nlora_key: false\nlora_value: true\nlora_mlp: {mlp}\nquantize: {quantize}\n"


def lora(devices: int = 1, mlp: str = "false", quantize: str = "") -> str:
    return LORA.format(devices=devices, mlp=mlp, quantize=quantize)


def test_one_device_checkpoints_nothing_and_several_shard() -> None:
    holds(
        job(FULL.format(devices=1), "a.yaml"),
        runtime="litgpt",
        model="llama-3.2-1b",
        gradient_accumulation_steps=16,
        activation_checkpointing="none",
        precision="pure-bf16",
        optimizer_implementation="foreach",
        max_gradient_norm=None,
    )
    holds(
        job(FULL.format(devices=4), "a.yaml"),
        gradient_accumulation_steps=4,  # the batch is that of all devices
        activation_checkpointing="full",
        parallel__data=4,
        parallel__sharding="fsdp",
        parallel__fsdp_version=1,
    )


@pytest.mark.parametrize(
    ("head", "micro", "total", "norm"),
    [("checkpoint_dir: a/b/Llama-3.2-1B\nlora_r: 4", 1, 16, None), ("model_name: pythia-160m", 4, 512, 1.0)],
)
def test_what_a_mapping_of_training_leaves_out_is_that_of_the_command(
    head: str, micro: int, total: int, norm: float | None
) -> None:
    """As jsonargparse has it: the object that `setup` has as its default counts, and not that of the class."""
    text = f"{head}\ndevices: 1\ntrain: {{epochs: 2, max_seq_length: 64}}\n"
    found = job(text, "a.yaml", program="litgpt")
    holds(found, micro_batch_size=micro, gradient_accumulation_steps=total // micro, max_gradient_norm=norm)


def test_devices_that_are_named_beside_the_file_go_before_its_own() -> None:
    holds(
        job(lora(), "a.yaml", devices=8),
        gradient_accumulation_steps=2,
        activation_checkpointing="full",
        parallel__sharding="fsdp",
        parallel__fsdp_version=2,
        parallel__data=None,  # whoever names them says how many there are
    )
    few = FULL.format(devices=1).replace("global_batch_size: 32", "global_batch_size: 8")
    holds(job(few, "a.yaml", devices=8), gradient_accumulation_steps=1)
    assert any("which LitGPT refuses: 16 samples are counted" in note for note in meant(few, "a.yaml", devices=8).notes)


def test_several_devices_quantize_nothing() -> None:
    with pytest.raises(InputError, match="LitGPT quantizes on one device alone, and these are 8"):
        job(lora(quantize="bnb.nf4"), "a.yaml", devices=8)


def test_the_projections_with_adapters() -> None:
    holds(
        job(lora(), "a.yaml"),
        adapter__targets=["q_proj", "v_proj"],
        adapter__rank=16,
        adapter__alpha=16,
        adapter__dropout=0.05,
    )
    targets = job(lora(mlp="true"), "a.yaml")["adapter.targets"]
    assert targets == ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
    everything = lora(mlp="true").replace("lora_key: false", "lora_key: true") + "lora_projection: true\n"
    holds(job(everything, "a.yaml"), adapter__targets="all-linear")


@pytest.mark.parametrize(
    ("word", "ours"), [("bnb.nf4", "nf4"), ("bnb.nf4-dq", "nf4-double"), ("bnb.int8-training", "int8")]
)
def test_quantized_weights_have_another_optimizer(word: str, ours: str) -> None:
    holds(job(lora(quantize=word), "a.yaml"), quantization=ours, optimizer="adamw-paged", optimizer_implementation=None)


PRETRAIN = """\
model_name: pythia-14m
precision: bf16-mixed
train:
  global_batch_size: 64
  micro_batch_size: 8
  max_norm: 1.0
devices: auto
tokenizer_dir: checkpoints/EleutherAI/pythia-14m
"""


@pytest.mark.parametrize(
    ("name", "word", "how"),
    [
        ("torch.optim.Adagrad", "adagrad", "fused"),
        ("torch.optim.NAdam", "nadam", "foreach"),
        ("grokadamw.GrokAdamW", "grokadamw", None),
    ],
)
def test_pretraining_asks_for_a_fused_step_where_there_is_one(name: str, word: str, how: str | None) -> None:
    text = f"{PRETRAIN}optimizer:\n  class_path: {name}\n  init_args:\n    lr: 0.001\n"
    holds(job(text, "a.yaml"), optimizer=word, optimizer_implementation=how)


def test_pretraining_compiles_and_asks_for_the_fused_optimizer() -> None:
    found = meant(PRETRAIN, "a.yaml")
    holds(
        job(PRETRAIN, "a.yaml"),
        compile=True,
        optimizer_implementation="fused",
        precision="amp-bf16",
        max_gradient_norm=1.0,
        gradient_accumulation_steps=8,
        sequence_length=512,  # the model's own
    )
    assert found.job["model"]["hidden_size"] == 128
    assert set(found.open) == {"parallel.data"}


def test_pretraining_beyond_the_positions_of_the_model_asks_for_a_length() -> None:
    found = meant(PRETRAIN.replace("  max_norm", "  max_seq_length: 600\n  max_norm"), "a.yaml")
    assert "--seq 512" in found.open["sequence_length"]
    own = "model_config:\n  n_layer: 2\n  n_embd: 64\n  n_head: 4\n  block_size: {}\n" + PRETRAIN
    own = own.replace("  max_norm", "  max_seq_length: 600\n  max_norm")
    assert "--seq 128" in meant(own.format(128), "a.yaml").open["sequence_length"]
    assert meant(own.format(1024), "a.yaml").job["sequence_length"] == 600


@pytest.mark.parametrize(("compiler", "told"), [("torch", False), ("thunder", True)])
def test_the_compiler_that_pretraining_with_thunder_names(compiler: str, told: bool) -> None:
    found = meant(f"compiler: {compiler}\n" + PRETRAIN, "a.yaml")
    assert found.job["compile"] is True
    assert ("compiler" in found.unmodelled) == told


def test_fine_tuning_takes_no_norm_as_the_program_does() -> None:
    """`validate_args` of each script under litgpt/finetune raises for it, and null is none."""
    with pytest.raises(InputError, match="max_norm: litgpt finetune clips nothing"):
        meant(lora() + "train:\n  global_batch_size: 8\n  max_norm: 1.0\n", "a.yaml")
    assert "max_gradient_norm" not in job(lora() + "train:\n  global_batch_size: 8\n  max_norm: null\n", "a.yaml")


def test_the_number_of_gpus_beside_the_file_divides_the_batch() -> None:
    holds(
        job(PRETRAIN, "a.yaml", devices=4),
        gradient_accumulation_steps=2,
        precision="fsdp-bf16",
        parallel__sharding="fsdp",
    )


def test_a_batch_that_is_too_small_is_an_error() -> None:
    with pytest.raises(InputError, match="global_batch_size"):
        meant(FULL.format(devices=32), "a.yaml")


@pytest.mark.parametrize("devices", [1, 2])
def test_a_key_of_copies_of_litgpt_says_what_is_recomputed(devices: int) -> None:
    for word, means in (("true", "full"), ("false", "none")):
        text = FULL.format(devices=devices).replace("train:\n", f"train:\n  activation_checkpointing: {word}\n")
        assert job(text, "a.yaml")["activation_checkpointing"] == means


OWN = """
model_name: mine
model_config:
  n_layer: 2
  n_embd: 256
  n_head: 4
  n_query_groups: 2
  mlp_class_name: {kind}
  norm_class_name: RMSNorm
  intermediate_size: 512
  vocab_size: 1000
  padding_multiple: 64
  block_size: 128
  bias: false
  parallel_residual: false
  {more}
train: {{global_batch_size: 8, micro_batch_size: 4}}
devices: 1
"""


@pytest.mark.parametrize(
    ("kind", "more", "family", "experts"),
    [
        ("LLaMAMLP", "norm_qk: true", "llama", None),
        ("LLaMAMoE", "n_expert: 4\n  n_expert_per_token: 2", "mixtral", {"count": 4, "active": 2}),
        (
            "LLaMAMoE",
            "n_expert: 8\n  n_expert_per_token: 2\n  moe_intermediate_size: 96\n  norm_qk: true",
            "qwen_moe",
            {"count": 8, "active": 2, "intermediate_size": 96, "normalized": True, "dense_layers": []},
        ),
    ],
)
def test_a_model_with_sizes_of_its_own(kind: str, more: str, family: str, experts: dict[str, Any] | None) -> None:
    model = meant(OWN.format(kind=kind, more=more), "a.yaml").job["model"]
    assert (model["family"], model.get("experts")) == (family, experts)
    assert (model["vocabulary_size"], model["key_value_heads"]) == (1024, 2)
    assert model.get("qk_norm", False) == ("norm_qk" in more)


@pytest.mark.parametrize("part", ["n_layer", "n_embd", "n_head", "vocab_size", "padding_multiple", "block_size"])
def test_a_size_that_is_no_number_is_told_with_its_place(part: str) -> None:
    text = f"model_name: mine\nmodel_config:\n  {part}: [many]\ntrain: {{micro_batch_size: 1}}\n"
    with pytest.raises(InputError, match=rf"a.yaml:3:\d+: model_config.{part}: .* is not a number"):
        meant(text, "a.yaml", program="litgpt")


def test_experts_behind_more_dense_blocks_than_there_are() -> None:
    config = "{n_layer: 2, n_embd: 64, n_head: 4, intermediate_size: 64, mlp_class_name: LLaMAMoE, n_expert: 4"
    config += ", n_expert_per_token: 2, first_k_dense_replace: 1000000000000}"
    text = f"model_name: mine\nmodel_config: {config}\ntrain: {{micro_batch_size: 1}}\n"
    assert meant(text, "a.yaml", program="litgpt").job["model"]["experts"]["dense_layers"] == [0, 1]


def test_no_size_of_a_model_is_passed_over() -> None:
    with pytest.raises(InputError, match=r"model_config.n_experts: is not understood"):
        meant(OWN.format(kind="LLaMAMoE", more="n_experts: 4"), "a.yaml")
    found = meant(OWN.format(kind="LLaMAMoE", more="n_expert: 4\n  n_shared_expert: 1"), "a.yaml")
    assert "model_config.n_shared_expert" in found.open["model"]
    windows = meant(OWN.format(kind="LLaMAMLP", more="sliding_window_size: 64"), "a.yaml").unmodelled
    assert windows["model_config.sliding_window_size"] == "windows of attention"


def test_what_a_model_leaves_out_is_litgpts() -> None:
    model = meant("model_name: mine\nmodel_config: {n_layer: 2}\ntrain: {micro_batch_size: 1}\n", "a.yaml").job["model"]
    assert (model["family"], model["hidden_size"], model["intermediate_size"]) == ("neox", 4096, 16384)
    assert model["vocabulary_size"] == 50688


@pytest.mark.parametrize("key", ["train.activation_checkpointing", "fsdp.activation_checkpointing"])
def test_a_copy_of_litgpt_may_say_what_is_recomputed(key: str) -> None:
    section, name = key.split(".")
    text = "checkpoint_dir: checkpoints/EleutherAI/pythia-160m\nprecision: bf16-true\ndevices: {devices}\npad_id: 1\n"
    text += "train: {{max_seq_length: 64, micro_batch_size: 1, global_batch_size: 8}}\n"
    own = f"{section}: {{{{{name}: {{word}}}}}}\n"
    text = text.replace("8}}\n", f"8, {name}: {{word}}}}}}\n") if section == "train" else text + own
    assert job(text.format(devices=2, word="false"), "a.yaml")["activation_checkpointing"] == "none"
    assert job(text.format(devices=2, word="true"), "a.yaml")["activation_checkpointing"] == "full"


def test_the_scripts_before_the_command_litgpt(tmp_path: Path) -> None:
    """Those with `--train.` are what the command starts; earlier ones say neither batch nor rank."""
    command = "python finetune/lora.py --checkpoint_dir checkpoints/EleutherAI/pythia-160m"
    run = f"{command} --train.micro_batch_size 3 --train.max_seq_length 64 --lora_r 5\n"
    found = together(tmp_path, {"run.sh": run}, "run.sh")
    assert (found.program, found.job["micro_batch_size"], found.job["adapter"]["rank"]) == ("litgpt", 3, 5)
    with pytest.raises(InputError, match="constants in its text"):
        together(tmp_path, {"run.sh": f"{command} --precision bf16-true\n"}, "run.sh")


@pytest.mark.parametrize(("kind", "message"), [("pretrain_own", "a copy of LitGPT"), ("finetune_adapter", "prompts")])
def test_a_command_that_is_not_read_is_told(tmp_path: Path, kind: str, message: str) -> None:
    """litgpt 0.5.13, litgpt/__main__.py: what trains is `finetune*` and `pretrain`."""
    with pytest.raises(InputError, match=f"litgpt {kind} .*{message}"):
        together(tmp_path, {"run.sh": f"litgpt {kind} --config a.yaml --devices 1\n"}, "run.sh")


def test_a_schedule_of_a_copy_counts_for_nothing() -> None:
    found = meant(FULL.format(devices=1).replace("  epochs: 1\n", "  epochs: 1\n  min_lr_ratio: 0.1\n"), "a.yaml")
    assert any("train.min_lr_ratio" in note for note in found.notes)
    with pytest.raises(InputError, match="micro_batch_sizes: is not understood"):
        meant(FULL.format(devices=1).replace("micro_batch_size", "micro_batch_sizes"), "a.yaml")
