"""Commands of ms-swift, and the record that it keeps of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.configs.meant import holds
from vramplan.configs.combine import read_files, read_texts
from vramplan.configs.reading import Wanted
from vramplan.errors import InputError
from vramplan.results.reading import ReadJob

RUN = "swift sft --model Qwen/Qwen2.5-0.5B-Instruct --dataset rows.jsonl --max_length 512"


def meant(text: str, file: str = "run.sh", **wanted: object) -> ReadJob:
    """What the text of a script means."""
    return read_texts({file: text + "\n"}, Wanted(**wanted))  # type: ignore[arg-type]


def job(text: str, file: str = "run.sh", **wanted: object) -> dict[str, object]:
    """Its values by key."""
    return {value.key: value.value for value in meant(text, file, **wanted).values}


def test_what_a_command_leaves_out_is_lora_of_every_layer_in_the_checkpoints_type() -> None:
    """One process without NPROC_PER_NODE, and as many steps as make 16 samples."""
    found = meant(RUN)
    assert found.program == "ms-swift"
    holds(
        job(RUN),
        runtime="transformers",
        model="qwen2.5-0.5b",
        sequence_length=512,
        micro_batch_size=1,
        gradient_accumulation_steps=16,
        max_gradient_norm=1.0,
        adapter__kind="lora",
        adapter__rank=8,
        adapter__alpha=32,
        adapter__dropout=0.05,
        adapter__targets="all-linear",
        precision="amp-bf16",
        activation_checkpointing="full",
        checkpoint_reentrant=True,
        packing=False,
        parallel__data=1,
    )
    assert "use_logits_to_keep" in found.unmodelled


def test_several_processes_share_the_batch_and_checkpoint_without_reentering() -> None:
    """Under DeepSpeed checkpoints re-enter, and the file of that name is the one that comes with ms-swift."""
    four = f"NPROC_PER_NODE=4 {RUN} --train_type full --per_device_train_batch_size 2"
    holds(job(four), gradient_accumulation_steps=2, parallel__data=4, checkpoint_reentrant=None, adapter__kind=None)
    zero = job(f"{four} --deepspeed zero2")
    holds(zero, parallel__sharding="zero2", parallel__overlap_comm=False, parallel__reduce_bucket_size=200_000_000)
    holds(zero, precision="mixed-bf16", checkpoint_reentrant=True)
    offloaded = job(f"{four} --deepspeed zero3_offload")
    holds(offloaded, parallel__sharding="zero3")
    assert {*offloaded["offload"]} == {"optimizer", "gradients", "parameters"}  # type: ignore[misc]


def test_layers_that_one_process_spreads_over_several_gpus_are_told() -> None:
    assert "device_map" in meant(f"CUDA_VISIBLE_DEVICES=0,1 {RUN}").unmodelled
    assert "device_map" not in meant(f"CUDA_VISIBLE_DEVICES=0,1 NPROC_PER_NODE=2 {RUN}").unmodelled
    assert "device_map" not in meant(f"CUDA_VISIBLE_DEVICES=1 {RUN}").unmodelled


def test_fsdp_of_the_file_that_comes_with_it() -> None:
    found = job(f"NPROC_PER_NODE=2 {RUN} --tuner_type full --fsdp fsdp2")
    holds(found, parallel__sharding="fsdp", parallel__fsdp_version=2, activation_checkpointing="full")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--quant_method bnb --quant_bits 4", {"quantization": "nf4-double"}),
        ("--quant_method bnb --quant_bits 4 --bnb_4bit_use_double_quant false", {"quantization": "nf4"}),
        ("--quant_method bnb --quant_bits 8", {"quantization": "int8"}),
        ("--torch_dtype float16", {"precision": "amp-fp16", "weight_dtype": "fp16"}),
        ("--torch_dtype float32", {"precision": "amp-fp16", "weight_dtype": "fp32"}),
        ("--attn_impl flash_attn --packing true", {"attention": "flash", "packing": True}),
        (
            "--sft_type lora --lora_rank 4 --lora_target_modules q_proj v_proj",
            {"adapter__targets": ["q_proj", "v_proj"]},
        ),
        ("--lora_dtype bfloat16", {"adapter__dtype": "bf16"}),
        ("--tuner_type vera --vera_rank 64", {"adapter__kind": "vera", "adapter__rank": 64}),
        ("--tuner_type fourierft", {"adapter__kind": "fourierft", "adapter__frequencies": 2000}),
        ("--use_dora true", {"adapter__kind": "dora"}),
    ],
)
def test_arguments_in_the_terms_of_a_job(more: str, expected: dict[str, object]) -> None:
    holds(job(f"{RUN} {more}"), **expected)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--rlhf_type dpo", {"loss": "dpo", "dpo_reference": "adapter-off"}),
        ("--rlhf_type dpo --ref_model own", {"loss": "dpo", "dpo_reference": "model"}),
        ("--rlhf_type kto --train_type full", {"loss": "kto", "dpo_reference": "model"}),
        ("--rlhf_type simpo", {"loss": "simpo", "dpo_reference": None}),
        ("--rlhf_type rm", {"loss": "reward"}),
        ("--rlhf_type grpo --max_completion_length 100", {"loss": "grpo", "sequence_length": 612}),
    ],
)
def test_methods_of_rlhf(more: str, expected: dict[str, object]) -> None:
    holds(job(f"{RUN.replace(' sft ', ' rlhf ')} {more}"), **expected)


def test_what_no_job_has_is_asked_for_or_refused() -> None:
    assert "quantization" in meant(f"{RUN} --quant_method hqq --quant_bits 4").open
    with pytest.raises(InputError, match="reft is not modelled"):
        meant(f"{RUN} --tuner_type reft")
    with pytest.raises(InputError, match="embedding is not modelled"):
        meant(f"{RUN} --task_type embedding")
    with pytest.raises(InputError, match="lora_rnk"):
        meant(f"{RUN} --lora_rnk 4")


def test_a_file_of_settings_behind_the_command(tmp_path: Path) -> None:
    config = "model: Qwen/Qwen2.5-0.5B-Instruct\ntuner_type: full\nmax_length: 256\nattn_impl: sdpa\n"
    (tmp_path / "own.yaml").write_text(config, "utf-8")
    (tmp_path / "run.sh").write_text("swift sft own.yaml --max_length 128\n", "utf-8")
    found = {value.key: value.value for value in read_files([str(tmp_path / "run.sh")], Wanted()).values}
    holds(found, model="qwen2.5-0.5b", sequence_length=128, adapter__kind=None, attention="sdpa")
    holds(job(config, "own.yaml"), model="qwen2.5-0.5b", sequence_length=256)


def test_the_record_of_a_run() -> None:
    kept = {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "train_type": "lora",
        "torch_dtype": "bfloat16",
        "max_length": 64,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "loss_scale": "default",
        "global_world_size": 2,
        "model_info": "ModelInfo(...)",
        "template_meta": "TemplateMeta(...)",
        "swift_version": "4.1.0",
        "adapter_length": 128,  # of kinds of adapters that it has not
        "reft_rank": 4,
        "rank": 0,
    }
    found = job(json.dumps(kept), "args.json")
    holds(found, micro_batch_size=4, gradient_accumulation_steps=2, parallel__data=2, adapter__rank=8)


def test_scripts_of_the_first_releases_name_a_model_by_its_type() -> None:
    words = "--model_type qwen1half-7b --sft_type lora --lora_dropout_p 0. --batch_size 2 --dtype bf16 --max_length 512"
    command = f"torchrun --nproc_per_node=2 src/llm_sft.py {words} --lora_rank 4 --learning_rate 1e-4 --bf16 true\n"
    found = meant(command, "sft.sh")
    assert found.program == "ms-swift"
    assert (found.job["model"], found.job["micro_batch_size"]) == ("qwen1.5-7b", 2)
    assert found.job["parallel"] == {"data": 2, "sharding": "ddp"}
    assert found.job["adapter"]["dropout"] == 0.0
    preferred = meant(command.replace("llm_sft", "llm_dpo"), "dpo.sh")
    assert preferred.job["loss"] == "dpo"
