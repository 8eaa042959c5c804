"""Files of LLaMA-Factory, of both schemas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.configs.meant import holds, job, meant
from vramplan.configs.combine import read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError

BASE = """\
model_name_or_path: Qwen/Qwen3-4B-Instruct-2507
stage: sft
do_train: true
template: qwen3
dataset: identity
cutoff_len: 4096
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
bf16: true
"""
V1 = """\
model: Qwen/Qwen3-0.6B
model_class: llm
train_dataset: data/v1_sft_demo.yaml
micro_batch_size: 1
cutoff_len: 1024
"""


def test_an_adapter_by_default() -> None:
    holds(
        job(BASE, "a.yaml"),
        model="qwen3-4b",
        sequence_length=4096,
        adapter__rank=8,
        adapter__alpha=16,  # twice the rank
        adapter__targets="all-linear",
        precision="amp-bf16",
        weight_dtype="bf16",
        activation_checkpointing="full",  # on by absence
        checkpoint_reentrant=True,
        attention="sdpa",
        max_gradient_norm=1.0,
        packing=False,
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("finetuning_type: full\n", {"precision": "amp-bf16", "weight_dtype": "fp32"}),  # trainable weights are upcast
        ("finetuning_type: full\npure_bf16: true\n", {"precision": "pure-bf16", "weight_dtype": None}),
        (
            "finetuning_type: full\ndeepspeed: examples/deepspeed/ds_z3_config.json\n",
            {"precision": "mixed-bf16", "parallel__sharding": "zero3", "parallel__sub_group_size": None},
        ),
        ("finetuning_type: full\nfp8: true\nfsdp:\n  - full_shard\n", {"precision": "fsdp-fp8"}),
        ("quantization_bit: 4\n", {"quantization": "nf4-double"}),
        ("quantization_bit: 4\ndouble_quantization: false\n", {"quantization": "nf4"}),
        ("quantization_bit: 8\n", {"quantization": "int8"}),
        ("disable_gradient_checkpointing: true\n", {"activation_checkpointing": "none", "checkpoint_reentrant": None}),
        ("neat_packing: true\npacking: true\n", {"packing": True}),
        ("packing: true\n", {"packing": False}),  # samples stand behind each other without a mask
        ("enable_liger_kernel: true\n", {"loss": "fused"}),
        ("flash_attn: fa2\n", {"attention": "flash"}),
        ("flash_attn: disabled\n", {"attention": "eager"}),
        ("use_dora: true\n", {"adapter__kind": "dora"}),
        ("finetuning_type: full\nuse_muon: true\n", {"optimizer": "muon"}),
        ("finetuning_type: oft\noft_target: all\n", {"adapter__kind": "oft", "adapter__targets": "all-linear"}),
        (
            "finetuning_type: lora\nuse_rslora: true\npissa_init: true\npissa_iter: 16\nloraplus_lr_ratio: 16.0\n",
            {"adapter__kind": "lora"},
        ),
        ("finetuning_type: oft\n", {"adapter__rank": 32, "adapter__dropout": None, "adapter__alpha": None}),
        ("finetuning_type: oft\noft_block_size: 64\n", {"adapter__rank": 64}),
        ("ray_num_workers: 4\n", {"parallel__data": 4}),
        ("stage: rm\nenable_liger_kernel: true\n", {"loss": "reward", "liger_kernels": ["rms-norm", "glu", "rope"]}),
        ("use_mca: true\nmixed_precision: bf16_with_fp8_current_scaling_mixed\n", {"precision": "fp8"}),
        ("bf16: false\n", {"precision": "pure-bf16", "adapter__dtype": "fp32"}),  # the checkpoint's, without autocast
        ("bf16: false\nfinetuning_type: full\n", {"precision": "fp32", "weight_dtype": "fp32"}),
        ("bf16: false\nfinetuning_type: full\nuse_badam: true\n", {"precision": "pure-bf16"}),
    ],
)
def test_settings(lines: str, expected: dict[str, Any]) -> None:
    holds(job(BASE + lines, "a.yaml"), **expected)


def test_badam_by_layer_trains_a_block_of_half_weights() -> None:
    lines = "finetuning_type: full\nbf16: true\nuse_badam: true\n"
    holds(job(BASE + lines, "a.yaml"), trained_blocks="badam", precision="amp-bf16", weight_dtype="bf16")
    found = meant(BASE + lines + "badam_mode: ratio\n", "a.yaml")
    assert "trained_blocks" not in found.job
    assert "whole weights" in found.unmodelled["badam_mode"]


@pytest.mark.parametrize(
    ("optim", "word"),
    [("adamw_torch", "galore-adamw"), ("paged_adamw_8bit", "galore-adamw-8bit"), ("adafactor", "galore-adafactor")],
)
def test_galore_is_made_over_the_optimizer_that_optim_names(optim: str, word: str) -> None:
    lines = f"finetuning_type: full\npure_bf16: true\nuse_galore: true\ngalore_rank: 8\noptim: {optim}\n"
    holds(job(BASE + lines, "a.yaml"), optimizer=f"{word}:8")


def test_galore_by_layer_steps_in_backward_and_clips_nothing() -> None:
    lines = "finetuning_type: full\npure_bf16: true\nuse_galore: true\ngalore_rank: 64\ngalore_layerwise: true\n"
    found = job(BASE + lines, "a.yaml")
    holds(found, optimizer="galore-adamw:64", optimizer_in_backward=True)
    assert found["max_gradient_norm"] is None


def test_the_last_blocks_are_trained() -> None:
    text = BASE.replace("Qwen/Qwen3-4B-Instruct-2507", "meta-llama/Meta-Llama-3-8B-Instruct")
    found = job(text + "finetuning_type: freeze\nfreeze_trainable_layers: 4\n", "a.yaml")
    assert found["frozen"] == ["embeddings", "head", "norms", "layers.0-27"]
    found = job(text + "finetuning_type: freeze\nfreeze_trainable_layers: -2\n", "a.yaml")
    assert "layers.2-31" in found["frozen"]


def test_quantization_may_stand_in_the_name_of_the_checkpoint_alone() -> None:
    found = meant(BASE.replace("Qwen/Qwen3-4B-Instruct-2507", "TheBloke/Llama-2-7B-GPTQ"), "a.yaml")
    assert found.job["quantization"] == "gptq-int4"
    assert len(found.job["adapter"]["targets"]) == 7
    assert any("name of the checkpoint" in note for note in found.notes)


def test_preferences() -> None:
    holds(
        job(BASE.replace("stage: sft", "stage: dpo"), "a.yaml"),
        loss="dpo",
        dpo_reference="adapter-off",
        padding="right",
    )
    holds(job(BASE.replace("stage: sft", "stage: dpo") + "finetuning_type: full\n", "a.yaml"), dpo_reference="model")
    holds(job(BASE.replace("stage: sft", "stage: dpo") + "pref_loss: orpo\n", "a.yaml"), loss="orpo")
    holds(job(BASE.replace("stage: sft", "stage: kto"), "a.yaml"), loss="kto", dpo_reference="adapter-off")
    holds(job(BASE.replace("stage: sft", "stage: rm"), "a.yaml"), loss="reward", padding="right")


@pytest.mark.parametrize(("stage", "runtime"), [("sft", "unsloth"), ("dpo", "transformers"), ("kto", "transformers")])
def test_preferences_with_unsloth_are_counted_without_its_kernels(stage: str, runtime: str) -> None:
    found = meant(BASE.replace("stage: sft", f"stage: {stage}") + "use_unsloth: true\n", "a.yaml")
    assert found.job["runtime"] == runtime
    assert ("use_unsloth" in found.unmodelled) == (runtime == "transformers")


def test_defaults_move_with_releases() -> None:
    holds(job(BASE, "a.yaml"), optimizer="adamw", optimizer_implementation=None)
    holds(job(BASE, "a.yaml", version="0.9.3"), optimizer="adamw", optimizer_implementation="foreach")
    with pytest.raises(InputError, match=r"0\.9\.6"):
        meant(BASE, "a.yaml", version="7.0")


def test_the_schema_of_v1_has_other_names() -> None:
    found = job(V1 + "dist_config:\n  name: fsdp2\nkernel_config:\n  name: liger_kernel\n", "a.yaml")
    holds(
        found,
        model="qwen3-0.6b",
        precision="fsdp-bf16",
        loss=None,  # Liger's other kernels alone: what is trained asks for logits
        liger_kernels=["rms-norm", "glu", "rope"],
        optimizer_implementation="foreach",
        parallel__fsdp_version=2,
        activation_checkpointing="full",
        checkpoint_reentrant=False,
    )
    lora = V1 + "peft_config:\n  name: lora\n  r: 16\n  lora_alpha: 32\nglobal_batch_size: 8\n"
    holds(job(lora, "a.yaml"), adapter__rank=16, adapter__dropout=0.05, global_batch_size=8)
    holds(job(lora, "a.yaml"), precision="pure-bf16", adapter__dtype="fp32")  # bf16 is a policy of FSDP
    merging = meant(V1 + "peft_config:\n  name: lora\n  export_dir: merged\n", "a.yaml")
    assert any("trains nothing" in note for note in merging.notes)
    holds(job(V1, "a.yaml"), precision="fp32")
    experts = V1 + "dist_config:\n  name: fsdpturbo\n  ep_size: 4\n"
    holds(job(experts, "a.yaml"), parallel__expert=4, parallel__fsdp_version=2)
    with pytest.raises(InputError, match="offload_params"):
        meant(V1 + "dist_config:\n  name: fsdp2\n  offload_param: true\n", "a.yaml")


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(InputError, match="lora_rank"):
        meant(BASE + "lora_rnak: 8\n", "a.yaml")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("infer_backend: vllm\n", "infer_backend: the file answers a chat and trains nothing"),
        (
            "task: mmlu\nsplit: test\nn_shot: 5\n",
            "n_shot: the file asks the questions of a benchmark and trains nothing",
        ),
        ("export_dir: out\nexport_size: 5\n", "export_dir: the file merges or quantizes a model and trains nothing"),
    ],
)
def test_files_that_train_nothing_say_so(more: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        meant(f"model_name_or_path: Qwen/Qwen3-4B\ntemplate: qwen3\n{more}", "a.yaml")
    assert what in str(caught.value)
    trains = f"model_name_or_path: Qwen/Qwen3-4B\ntemplate: qwen3\nstage: sft\ndataset: own\n{more}"
    assert meant(trains, "a.yaml", ignore_unknown=True).job["model"] == "qwen3-4b"


def test_the_way_to_share_that_the_caller_gives_decides_what_autocast_becomes() -> None:
    """DeepSpeed casts the whole model at every stage: a file of it that is not here leaves the sharding open alone."""
    text = BASE + "finetuning_type: full\ndeepspeed: elsewhere.json\n"
    holds(job(text, "a.yaml"), precision="mixed-bf16", weight_dtype=None, parallel__sharding=None)
    typed = read_texts({"a.yaml": text}, Wanted(beside={"parallel.sharding": "zero3"}))
    values = {value.key: value.value for value in typed.values}
    holds(values, precision="mixed-bf16", weight_dtype=None, parallel__sharding=None)
    sharded = read_texts({"a.yaml": BASE}, Wanted(beside={"parallel.sharding": "fsdp"}))
    assert sharded.job["precision"] == "fsdp-bf16"


def test_trained_blocks_in_fp32_beside_frozen_ones_are_told() -> None:
    found = meant(BASE + "finetuning_type: freeze\nfreeze_trainable_layers: 8\nuse_llama_pro: true\n", "a.yaml")
    assert "in fp32 beside frozen ones" in found.unmodelled["finetuning_type"]
    assert "added to the model" in found.unmodelled["use_llama_pro"]
    pure = meant(BASE + "finetuning_type: freeze\npure_bf16: true\n", "a.yaml")
    assert "finetuning_type" not in pure.unmodelled


def test_preferences_by_their_older_names() -> None:
    text = (
        "model_name_or_path: meta-llama/Llama-3.2-1B\nstage: dpo\nfinetuning_type: full\ncutoff_len: 64\nbf16: true\n"
    )
    holds(job(text + "dpo_loss: ipo\ndpo_beta: 0.2\ndpo_ftx: 1.0\n", "a.yaml"), loss="dpo", dpo_reference="model")
    with pytest.raises(InputError, match="'own' is not understood"):
        job(text + "dpo_loss: own\n", "a.yaml")


def test_a_command_of_an_old_release_and_what_only_its_caller_knows() -> None:
    text = """\
    for rank in 8 16; do
      CUDA_VISIBLE_DEVICES=0 python src/train_bash.py --stage sft --model_name_or_path meta-llama/Llama-2-7b-hf \\
        --do_train --dataset own --prompt_template default --finetuning_type lora --lora_rank $rank --flash_attn \\
        --max_source_length 512 --max_target_length 256 --per_device_train_batch_size $BATCH --bf16
    done
    """
    found = meant(text, "run.sh")
    told = {value.key: value.value for value in found.values}
    holds(told, adapter__rank=8, attention="flash", sequence_length=768, micro_batch_size=None)
    assert "$BATCH" in found.open["micro_batch_size"]
    assert any("$rank is 8 first, of 8, 16" in note for note in found.notes)


def test_deepspeed_holds_its_own_copy_whatever_pure_bf16_says() -> None:
    text = BASE + "finetuning_type: full\npure_bf16: true\ndeepspeed: ds.json\n"
    zero = '{{"zero_optimization": {{"stage": 2}}, "bf16": {{"enabled": {on}}}, "fp16": {{"enabled": false}}}}'
    for on in ("true", '"auto"'):
        found = read_texts({"a.yaml": text, "ds.json": zero.format(on=on)}, Wanted())
        assert (found.job["precision"], found.job["parallel"]["sharding"]) == ("mixed-bf16", "zero2")


@pytest.mark.parametrize(("half", "on"), [("fp16", "true"), ("bf16", "false")])
def test_types_that_the_trainer_refuses_beside_the_deepspeed_file(half: str, on: str) -> None:
    zero = f'{{"zero_optimization": {{"stage": 2}}, "{half}": {{"enabled": {on}}}}}'
    with pytest.raises(InputError) as caught:
        read_texts({"a.yaml": BASE + "finetuning_type: full\ndeepspeed: ds.json\n", "ds.json": zero}, Wanted())
    assert f"{half}.enabled" in (caught.value.problems[0].key or "")
    assert "which the Trainer refuses" in str(caught.value)


@pytest.mark.parametrize("name", ["PLACEHOLDER", "MODEL_NAME", "placeholder"])
def test_a_name_that_is_to_be_filled_in_is_asked_for(name: str) -> None:
    assert "model" in meant(BASE.replace("Qwen/Qwen3-4B-Instruct-2507", name), "a.yaml").open


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_adapters_over_quantized_weights_are_fp32_in_every_stage(half: str) -> None:
    """Source: hiyouga/LLaMA-Factory 0.9.6.dev0, src/llamafactory/model/adapter.py, init_adapter."""
    text = (
        BASE.replace("stage: sft", "stage: dpo").replace("bf16", half) + "finetuning_type: lora\nquantization_bit: 4\n"
    )
    holds(job(text, "a.yaml"), loss="dpo", adapter__dtype="fp32", precision=f"amp-{half}")


@pytest.mark.parametrize("key", ["use_galore", "use_apollo", "use_badam"])
def test_lora_is_refused_beside_what_works_on_whole_weights(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}: is on beside LoRA"):
        meant(BASE + f"finetuning_type: lora\nlora_target: all\n{key}: true\n", "a.yaml")


def test_a_file_that_leaves_its_model_out_is_told_by_what_is_trained_and_how() -> None:
    text = "stage: sft\nfinetuning_type: lora\nlora_rank: 4\ncutoff_len: 64\ntemplate: qwen\nbf16: true\n"
    found = meant(text, "train.yaml")
    assert (found.program, found.job["adapter"]["rank"]) == ("llama-factory", 4)
    assert "model" in found.open
    with pytest.raises(InputError, match="of no training program"):
        meant("stage: sft\ntemplate: qwen\ncutoff_len: 64\n", "chat.yaml")


def test_an_adapter_that_is_trained_on_has_its_own_rank() -> None:
    text = BASE + "adapter_name_or_path: saves/sft\n"
    assert "whose own rank" in meant(text, "a.yaml").unmodelled["adapter_name_or_path"]
    assert "adapter_name_or_path" not in meant(text + "create_new_adapter: true\n", "a.yaml").unmodelled


def test_a_sample_that_several_processes_share_in_the_fork_of_360() -> None:
    found = meant(BASE + "sequence_parallel_size: 4\nsequence_parallel_mode: ulysses\n", "a.yaml", devices=8)
    assert found.job["parallel"]["context"] == 4
    assert "a ring is counted" in found.unmodelled["sequence_parallel_mode"]
    assert "sequence_parallel_mode" not in meant(BASE + "sequence_parallel_size: 4\n", "a.yaml").unmodelled


@pytest.mark.parametrize(
    ("lines", "context", "precision"),
    [
        ("dist_config: {name: fsdp2, cp_mode: ulysses, cp_size: 2}\nbf16: false\n", 2, "fsdp-bf16"),  # of April 2026
        ("dist_config: {name: fsdp2, mixed_precision: fp32}\n", None, "fp32"),
        ("dist_config: {name: fsdp2}\ncp_size: 2\nbf16: false\n", 2, "fp32"),
    ],
)
def test_degrees_and_precision_below_dist_config(lines: str, context: int | None, precision: str) -> None:
    holds(job(V1 + lines, "a.yaml"), parallel__context=context, precision=precision)


def test_deepspeed_casts_adapters_over_quantized_weights_too() -> None:
    lines = "quantization_bit: 4\nenable_liger_kernel: true\n"
    zero = job(BASE + lines + "deepspeed: examples/deepspeed/ds_z2_config.json\n", "a.yaml")
    holds(zero, precision="mixed-bf16", adapter__dtype=None)
    holds(job(BASE + lines, "a.yaml"), precision="amp-bf16", adapter__dtype="fp32")
