"""verl's trainer of SFT. Source of the expected values: volcengine/verl 0.7.0, fsdp_sft_trainer.py and its YAML."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.cli.running import run
from tests.configs.meant import holds, job
from vramplan.configs.combine import read_files
from vramplan.configs.reading import ReadJob, Wanted
from vramplan.errors import InputError

pytestmark = pytest.mark.contract

COMMAND = """
    torchrun --standalone --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer \\
        data.train_files=rows.parquet data.train_batch_size=48 data.micro_batch_size_per_gpu=3 data.max_length=768 \\
        model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct +data.apply_chat_template=False trainer.total_epochs=2 \\
        optim.lr=1e-5 {more}
"""
OLD = """
    data: {train_batch_size: 256, micro_batch_size_per_gpu: 4, max_length: 1024, train_files: rows.parquet}
    model:
      partial_pretrain: Qwen/Qwen2.5-0.5B
      fsdp_config: {wrap_policy: {min_num_params: 0}, cpu_offload: false, offload_params: false}
      enable_gradient_checkpointing: false
      lora_rank: 0
    optim: {lr: 1.0e-5, clip_grad: 1.0}
    ulysses_sequence_parallel_size: 1
    trainer: {total_epochs: 4}
"""


def told(folder: Path, text: str, **wanted: Any) -> dict[str, Any]:
    """What a script says, by key."""
    (folder / "run.sh").write_text(dedent(text), "utf-8")
    read = read_files([str(folder / "run.sh")], Wanted(**wanted))
    assert read.program == "verl"
    return {value.key: value.value for value in read.values}


def test_a_command_is_fsdp_over_fp32_weights(tmp_path: Path) -> None:
    """A batch of all devices is divided by them and by the micro-batch: 48 / 4 / 3."""
    holds(
        told(tmp_path, COMMAND.format(more="")),
        model="qwen2.5-0.5b",
        sequence_length=768,
        micro_batch_size=3,
        gradient_accumulation_steps=4,
        optimizer="adamw",
        max_gradient_norm=1.0,
        precision="fsdp-bf16",
        activation_checkpointing="full",
        attention="flash",
        parallel__sharding="fsdp",
        parallel__fsdp_version=2,
        parallel__reduce_dtype="fp32",
        parallel__no_sync=False,
        parallel__data=4,
        adapter__kind=None,
        offload=None,
    )


def test_what_a_command_changes(tmp_path: Path) -> None:
    more = (
        "model.lora_rank=32 model.lora_alpha=8 model.target_modules=[q_proj,v_proj] model.strategy=fsdp"
        " model.enable_gradient_checkpointing=False model.fsdp_config.cpu_offload=True"
        " model.fsdp_config.offload_params=True model.use_liger=True"
    )
    holds(
        told(tmp_path, COMMAND.format(more=more)),
        adapter__rank=32,
        adapter__alpha=8,
        adapter__dropout=0.0,
        adapter__targets=["q_proj", "v_proj"],
        parallel__fsdp_version=1,
        activation_checkpointing="none",
        offload=["parameters", "gradients", "optimizer"],
        liger_kernels=["rms-norm", "glu", "rope"],
    )


def test_groups_of_ulysses_share_a_batch(tmp_path: Path) -> None:
    more = "ulysses_sequence_parallel_size=2 use_remove_padding=true"
    holds(
        told(tmp_path, COMMAND.format(more=more)),
        parallel__context=2,
        parallel__data=2,
        gradient_accumulation_steps=8,
    )


def test_without_the_number_of_gpus_the_steps_are_open(tmp_path: Path) -> None:
    text = COMMAND.format(more="").replace(" --nnodes=1 --nproc_per_node=4", "")
    (tmp_path / "run.sh").write_text(dedent(text), "utf-8")
    read = read_files([str(tmp_path / "run.sh")], Wanted())
    assert {"parallel.data", "gradient_accumulation_steps"} <= read.open.keys()
    holds(told(tmp_path, text, devices=8), gradient_accumulation_steps=2, parallel__data=8)
    assert run("fit", str(tmp_path / "run.sh"), "--gpu", "h100", "--gpus", "8", "--print", "verdict").code == 0


def test_a_batch_that_the_devices_do_not_divide_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="48 is no multiple of 5 sequences on 4 replicas"):
        told(tmp_path, COMMAND.format(more="data.micro_batch_size_per_gpu=5"))


def test_a_whole_file_without_a_strategy_is_of_an_old_release(tmp_path: Path) -> None:
    """FSDP 1 wraps the model until May 2025; a copy of verl around a command has its defaults."""
    holds(job(OLD, "own.yaml"), parallel__fsdp_version=1, activation_checkpointing="none", micro_batch_size=4)
    folder = tmp_path / "verl" / "trainer" / "config"
    folder.mkdir(parents=True)
    (folder / "sft_trainer.yaml").write_text(dedent(OLD), "utf-8")
    holds(
        told(tmp_path, COMMAND.format(more="")),
        parallel__fsdp_version=1,
        activation_checkpointing="none",
        sequence_length=768,
        model="qwen2.5-0.5b",
    )


def test_a_release_names_its_defaults(tmp_path: Path) -> None:
    holds(told(tmp_path, COMMAND.format(more=""), version="0.4.0"), activation_checkpointing="none")


def test_a_misspelled_key_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(dedent(COMMAND.format(more="model.lora_rnak=8")), "utf-8")
    assert "model.lora_rnak: is not understood" in run("read", str(tmp_path / "run.sh")).err


def test_other_trainers_of_verl_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python3 -m verl.trainer.main_generation data.path=rows.parquet\n", "utf-8")
    with pytest.raises(InputError, match="another trainer of verl"):
        read_files([str(tmp_path / "run.sh")], Wanted())


POLICY = """
    python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=rows.parquet \\
        data.max_prompt_length=512 data.max_response_length=1536 data.train_batch_size=128 \\
        actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.model.use_remove_padding=True \\
        actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
        actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.rollout.n=8 \\
        actor_rollout_ref.rollout.gpu_memory_utilization=0.6 trainer.n_gpus_per_node=4 {more}
"""


def read_policy(folder: Path, more: str = "") -> ReadJob:
    (folder / "run.sh").write_text(dedent(POLICY.format(more=more)), "utf-8")
    return read_files([str(folder / "run.sh")], Wanted())


def test_the_update_of_a_policy(tmp_path: Path) -> None:
    """fsdp_workers.py: 32 prompts x 8 answers / 4 GPUs = 64 answers, in parts of 4; states come back for the update."""
    read = read_policy(tmp_path)
    holds(
        {value.key: value.value for value in read.values},
        model="qwen2.5-0.5b",
        sequence_length=2048,
        micro_batch_size=4,
        gradient_accumulation_steps=16,
        precision="fsdp-bf16",
        activation_checkpointing="full",
        max_gradient_norm=1.0,
        parallel__sharding="fsdp",
        parallel__fsdp_version=1,
        parallel__data=4,
        parallel__reduce_dtype="fp32",
        offload=None,
        padding=None,
    )
    assert [*read.open] == ["loss"]
    assert any("vllm takes 60% of each GPU while it samples, and sleeps" in note for note in read.notes)


def test_what_a_policy_has_otherwise(tmp_path: Path) -> None:
    """Parts of 8192 tokens x 2 of Ulysses hold 8 answers of 2048; an engine that stays keeps its share."""
    more = (
        "actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.offload_policy=True"
        " actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192"
        " actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.model.lora_rank=16"
        " actor_rollout_ref.rollout.free_cache_engine=False actor_rollout_ref.model.use_remove_padding=False"
        " actor_rollout_ref.actor.fsdp_config.fsdp_size=2 algorithm.adv_estimator=gae reward_model.enable=True"
    )
    read = read_policy(tmp_path, more)
    holds(
        {value.key: value.value for value in read.values},
        micro_batch_size=8,
        gradient_accumulation_steps=16,
        parallel__context=2,
        parallel__data=2,
        parallel__sharding="hsdp:2",
        parallel__fsdp_version=2,
        offload=["parameters", "gradients", "optimizer"],
        adapter__rank=16,
        adapter__alpha=16,
        padding="right",
    )
    asked = read.open
    assert asked.keys() == {"loss", "reserve"}
    assert "48 GiB" in asked["reserve"]
    assert "critic" in asked["loss"]
    assert [*read.unmodelled] == ["reward_model.enable"]


def test_a_policy_without_a_micro_batch_asks_for_it(tmp_path: Path) -> None:
    read = read_policy(tmp_path, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null")
    assert {*read.open} == {"loss", "micro_batch_size", "gradient_accumulation_steps"}


def test_workers_of_megatron_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers of Megatron are not modelled"):
        read_policy(tmp_path, "actor_rollout_ref.actor.strategy=megatron")
