"""How what is written is started: the number of processes, and what a program asks of its files beside the job."""

from __future__ import annotations

import re
from itertools import islice
from math import prod
from random import Random
from typing import Any

import pytest

from tests.cli.running import run
from tests.extent import runs_whole
from tests.fuzz import draws
from vramplan.configs.asked import Asked, asked_of, nested
from vramplan.configs.programs import trainer
from vramplan.configs.writers import MODULES, writer_of
from vramplan.configs.writing import Unsaid, WrittenFiles, made
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict

RUN = {
    "model": "llama-3.2-1b",
    "gpu": "h100",
    "sequence_length": 512,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "activation_checkpointing": "none",
}


def asked(name: str, **keys: Any) -> Asked:
    """A job of the program's runtime; nothing is replayed."""
    job = {**RUN, "runtime": writer_of(name).runtimes[0], **keys}
    return asked_of(job_to_dict(build_job(nested(job))), ())


def written(name: str, **keys: Any) -> dict[str, str]:
    """The files of a job, and under an empty name how they are started."""
    files = made(asked(name, **keys), writer_of(name), (), (), lambda line: "")
    return {"": files.launch[0], **files.texts}


FSDP = {"parallel.sharding": "fsdp", "precision": "fsdp-bf16"}
ON_8 = {"parallel.data": 8, **FSDP}
ON_16 = {"parallel.data": 16, **FSDP}
PURE = {"precision": "pure-bf16"}
LORA = {"adapter.kind": "lora", "weight_dtype": "bf16"}
ZERO = {"parallel.data": 1, "parallel.sharding": "zero2", "precision": "mixed-bf16"}
MEETING = "--nnodes 2 --rdzv_backend c10d --rdzv_endpoint HOST:29500 --nproc_per_node 8"
TRL = "-m trl.scripts.sft --config trl.yaml"


@pytest.mark.parametrize(
    ("name", "keys", "launch"),
    [
        ("trl", {}, f"CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 1 {TRL}"),
        ("trl", {"parallel.data": 1, **FSDP}, f"torchrun --nproc_per_node 1 {TRL}"),
        ("trl", ZERO, f"torchrun --nproc_per_node 1 {TRL}"),
        ("trl", ON_8, f"accelerate launch --num_processes 8 {TRL}"),
        ("training-arguments", {}, "CUDA_VISIBLE_DEVICES=0 python train.py training-arguments.yaml"),
        ("training-arguments", ON_8, "torchrun --nproc_per_node 8 train.py training-arguments.yaml"),
        ("axolotl", {**ON_8, **PURE}, "axolotl train axolotl.yaml --num-processes 8"),
        ("axolotl", {**ON_16, **PURE}, f"axolotl train axolotl.yaml --launcher torchrun -- {MEETING}"),
        ("axolotl", ZERO, "axolotl train axolotl.yaml --launcher torchrun -- --nproc_per_node 1"),
        ("llama-factory", {"weight_dtype": "fp32"}, "CUDA_VISIBLE_DEVICES=0 llamafactory-cli train llama-factory.yaml"),
        ("llama-factory", ON_8, "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train llama-factory.yaml"),
        ("llama-factory", ZERO, "FORCE_TORCHRUN=1 NPROC_PER_NODE=1 llamafactory-cli train llama-factory.yaml"),
        ("torchtune", {}, "tune run full_finetune_single_device --config torchtune.yaml"),
        ("torchtune", {"parallel.data": 16}, f"tune run {MEETING} full_finetune_distributed --config torchtune.yaml"),
        (
            "torchtune",
            {"allocator": "expandable_segments:True"},
            "PYTORCH_ALLOC_CONF=expandable_segments:True tune run full_finetune_single_device --config torchtune.yaml",
        ),
        ("megatron-lm", {"parallel.tensor": 2}, "CUDA_DEVICE_MAX_CONNECTIONS=1 bash megatron.sh"),
    ],
)
def test_the_launch_command_starts_this_run(name: str, keys: dict[str, Any], launch: str) -> None:
    assert written(name, **keys)[""] == launch


@pytest.mark.parametrize(
    ("name", "keys", "options"),
    [
        ("torchtune", {"parallel.data": 8}, "--gpu h100-80gb --gpus 8"),
        ("torchtune", {"parallel.data": 4, "parallel.tensor": 2}, "--gpu 8xh100-80gb"),
        ("trl", ON_8, "--gpu h100-80gb --gpus 8"),
        ("llama-factory", {"weight_dtype": "fp32"}, "--gpu h100-80gb"),
    ],
)
def test_the_command_that_reads_the_files_counts_what_they_leave_open(
    name: str, keys: dict[str, Any], options: str
) -> None:
    assert re.search(rf"read back: vramplan fit \S+ {options}\n", written(name, **keys)[f"{name}.yaml"])


def test_one_gpu_under_fsdp_is_told_so_in_the_file_of_accelerate() -> None:
    assert "distributed_type: FSDP" in written("accelerate", **{"parallel.data": 1, **FSDP})["accelerate.yaml"]


@pytest.mark.parametrize(
    ("name", "keys", "line"),
    [
        ("trl", {"model": "mpt-7b"}, "attn_implementation: eager"),  # which has no SDPA: asked for, it is an error
        ("llama-factory", {"model": "bloom-560m", "weight_dtype": "fp32"}, "flash_attn: disabled"),
        ("trl", {"optimizer": "sgd-momentum"}, 'optim_args: "momentum=0.9"'),
        ("axolotl", {"parallel.context": 2, "precision": "pure-bf16"}, "attn_implementation: flash_attention_2"),
        ("torchtune", {"model": "phi-4"}, "vocab_path: /tmp/phi-4/vocab.json"),
        ("torchtune", {"model": "qwen2.5-0.5b"}, "merges_file: /tmp/Qwen2.5-0.5B/merges.txt"),
        ("torchtune", {"model": "phi-3-mini-4k"}, "model_type: PHI3_MINI"),
        ("trl", {"loss": "grpo", "sequence_length": 512}, "max_completion_length: 256"),
        ("trl", {"loss": "grpo", "micro_batch_size": 5}, "num_generations: 5"),  # which divide a batch
        ("trl", {"loss": "grpo", "dpo_reference": "model"}, "beta: 0.04"),
        ("axolotl", {"loss": "grpo", "dpo_reference": "model", **PURE}, "  beta: 0.04"),
        ("axolotl", {"loss": "grpo", "sequence_length": 512, **PURE}, "  max_completion_length: 256"),
        ("axolotl", {"loss": "grpo", **PURE}, "rewards.py beside it has your reward functions"),
        ("torchtune", {"loss": "dpo", "parallel.data": 2}, "ref_checkpointer:"),
        ("torchtune", {"parallel.data": 4, "parallel.tensor": 2}, "torchtune.models.llama3.base_llama_tp_plan"),
        ("megatron-lm", {"parallel.data": 4, "parallel.sharding": "fsdp"}, "--ckpt-format fsdp_dtensor"),
        ("megatron-lm", {"model": "t5-small", "target_length": 512}, "examples/t5/pretrain_t5.py"),
        (
            "megatron-lm",  # whose validate_args takes no sequence beyond its positions
            {"model": "t5-small", "target_length": 512, "sequence_length": 1024},
            "--max-position-embeddings 1024",
        ),
        ("llama-factory", {"loss": "kto", **LORA}, "dataset: kto_en_demo"),  # which refuses examples of another form
        ("llama-factory", {"loss": "simpo", **LORA}, "dataset: dpo_en_demo"),
        ("llama-factory", {"eval_batch_size": 2, "weight_dtype": "fp32"}, "val_size: 0.05"),
        ("axolotl", {"eval_batch_size": 2, **PURE}, "eval_strategy: epoch"),
        ("axolotl", {"eval_batch_size": 2, **PURE}, "val_set_size: 0.05"),
        ("axolotl", {"loss": "reward", **PURE}, "type: bradley_terry.chat_template"),
        ("axolotl", {"loss": "orpo", **LORA}, "type: chat_template.argilla"),
        (
            "torchtune",
            {"model": "phi-3-mini-4k", "adapter.targets": ["qkv_proj"], **LORA},
            "lora_attn_modules: [q_proj, k_proj, v_proj]",
        ),
    ],
)
def test_what_the_program_asks_for_is_written(name: str, keys: dict[str, Any], line: str) -> None:
    assert line in "\n".join(written(name, **keys).values())


@pytest.mark.parametrize(
    ("name", "keys", "absent"),
    [
        ("litgpt", {}, "max_norm"),  # validate_args of fine-tuning takes none
        ("torchtune", {"optimizer": "rmsprop"}, "fused"),  # which has no such argument
        ("torchtune", {"loss": "dpo", "parallel.data": 2}, "packed"),  # the data set would hand it on
        ("training-arguments", {}, "activation_offloading"),
    ],
)
def test_what_the_program_does_not_take_is_not_written(name: str, keys: dict[str, Any], absent: str) -> None:
    assert absent not in "\n".join(written(name, **keys).values())


@pytest.mark.parametrize(
    ("name", "keys", "nearest"),
    [
        (
            "trl",
            {"optimizer_implementation": "for-loop"},
            {"optimizer_implementation"},
        ),  # adamw_hf is an old name
        ("axolotl", {"optimizer_implementation": "for-loop", "precision": "pure-bf16"}, {"optimizer_implementation"}),
        ("trl", {**ON_8, "parallel.sharding": "hsdp:4"}, {"parallel.sharding"}),
        ("trl", {"adapter.kind": "lora", "adapter.alpha": 0.5}, {"adapter.alpha"}),
        ("litgpt", {"max_gradient_norm": 1.0, "precision": "amp-bf16"}, {"max_gradient_norm"}),
        (
            "torchtune",
            {"adapter.kind": "lora", "parallel.data": 2, "activation_checkpointing": "selective-layer:2"},
            {"activation_checkpointing"},  # whose recipe reads no ac_mode
        ),
        ("torchtune", {"adapter.kind": "lora", "loss": "dpo", "max_gradient_norm": 1.0}, {"max_gradient_norm"}),
        ("training-arguments", {"offload": ["activations"]}, {"offload"}),  # a key of TRL
        (
            "axolotl",  # whose ring takes one packed sequence at a time
            {"micro_batch_size": 2, "packing": True, "parallel.context": 2, "attention": "flash", **PURE},
            {"micro_batch_size"},
        ),
    ],
)
def test_what_is_not_in_effect_is_an_error(name: str, keys: dict[str, Any], nearest: set[str]) -> None:
    with pytest.raises(Unsaid) as caught:
        written(name, **keys)
    assert nearest <= set(caught.value.nearest)


@pytest.mark.parametrize("name", ["accelerate", "axolotl", "torchtitan"])
def test_the_devices_of_a_context_shard_the_model_too_and_count_apart(name: str) -> None:
    keys = {**FSDP, "model": "llama-3.1-8b", "parallel.data": 4, "parallel.context": 2, "parallel.sharding": "hsdp:4"}
    keys |= PURE if name == "axolotl" else {}
    text = "\n".join(list(written(name, **keys).values())[1:])
    found = {word: int(value) for word, value in re.findall(r"_?(shard|replicate)_\w+[:=\s]+(\d+)", text)}
    assert found == {"shard": 2, "replicate": 2}


@pytest.mark.parametrize(
    ("keys", "nearest"),
    [
        (ON_8, "zero3"),
        ({**ON_8, "parallel.sharding": "fsdp-grad-op"}, "zero2"),
        ({"precision": "pure-bf16"}, "zero1"),  # of one GPU, where ddp would be no job
    ],
)
def test_the_nearest_to_a_sharding_is_the_stage_of_deepspeed_that_shards_as_much(
    keys: dict[str, Any], nearest: str
) -> None:
    with pytest.raises(Unsaid) as caught:
        written("deepspeed", **keys)
    assert caught.value.nearest["parallel.sharding"] == nearest


def test_a_model_that_a_loss_changes_is_no_error_of_its_own() -> None:
    with pytest.raises(Unsaid) as caught:
        written("trl", loss="reward", precision="pure-bf16", weight_dtype="bf16")
    said = [str(problem) for problem in caught.value.problems]
    assert any("loss=reward" in one for one in said)
    assert not any("model=" in one for one in said)


@pytest.mark.parametrize(
    ("name", "key"), [("trl", "dataset_name"), ("axolotl", "datasets"), ("torchtitan", "training.dataset")]
)
def test_what_is_yours_to_choose_is_told_before_the_settings(name: str, key: str) -> None:
    own = PURE if name == "axolotl" else {}
    text = list(written(name, **{**ON_8, "model": "llama-3.1-8b", **own}).values())[1]
    above, _, below = text.partition("yours to choose: ")
    assert all(line.startswith("#") for line in above.splitlines())
    assert key in below.partition("\n")[0].split(", ")


def test_torchtune_has_no_recipe_for_preferences_of_a_whole_model_on_one_gpu() -> None:
    with pytest.raises(InputError, match=r"nearest: --lora, or --gpus 2"):
        written("torchtune", loss="dpo")


def test_torchtune_adapts_at_least_one_layer_of_the_attention() -> None:
    with pytest.raises(InputError, match=r"nearest: --targets q_proj,gate_proj"):
        written("torchtune", **{"adapter.kind": "lora", "adapter.targets": ["gate_proj", "up_proj", "down_proj"]})


def test_deepspeed_has_a_file_of_its_own_beside_axolotls_tensor_parallelism() -> None:
    keys = {"parallel.data": 2, "parallel.tensor": 2, "parallel.sharding": "zero1", "precision": "mixed-bf16"}
    files = written("axolotl", **keys)
    assert "deepspeed: ds_config.json" in files["axolotl.yaml"]
    assert '"stage": 1' in files["ds_config.json"]


def test_a_dropout_of_nothing_is_that_of_a_model_without() -> None:
    assert written("trl", dropout=0.0)
    with pytest.raises(Unsaid):
        written("trl", model="gpt2", dropout=0.0)


def test_momentum_of_sgd_is_read(tmp_path: Any) -> None:
    file = tmp_path / "trl.yaml"
    lines = ("model_name_or_path: gpt2", "max_length: 128", "per_device_train_batch_size: 1", "optim: sgd")
    for more, word in (("", "sgd"), ("optim_args: momentum=0.9", "sgd-momentum"), ("optim_args: momentum=0", "sgd")):
        file.write_text("\n".join((*lines, more)))
        assert run("read", file, "--format", "json").document["job"]["optimizer"] == word


SEEDS = range(40)


def drawn(name: str, seed: int) -> dict[str, Any] | None:
    """A random job of the program's runtime; None where it is none."""
    random = Random(f"{name} {seed}")
    keys = draws.job(random) | {"runtime": random.choice(writer_of(name).runtimes)}
    keys |= {key: RUN[key] for key in ("gradient_accumulation_steps", "micro_batch_size", "activation_checkpointing")}
    keys["sequence_length"] = 64
    keys.pop("global_batch_size", None)
    try:
        with draws.SESSION.open():
            return dict(job_to_dict(build_job({key: value for key, value in keys.items() if value is not None})))
    except InputError:
        return None


def followed(name: str, job: dict[str, Any]) -> tuple[Asked, WrittenFiles] | None:
    """The files of a job, of which the nearest is taken until there are some; None where there is none."""
    for _ in range(6):
        try:
            with draws.SESSION.open():
                wanted = asked_of(job, ())
                return wanted, made(wanted, writer_of(name), (), (), lambda line: "")
        except Unsaid as caught:
            error = caught
        except InputError:
            return None
        assert error.nearest
        assert all("nearest: " in str(problem) for problem in error.problems)
        if "model" in error.nearest:
            return None
        for key, value in error.nearest.items():
            group, _, inner = key.rpartition(".")
            job = job | ({group: {**(job.get(group) or {}), inner: value}} if group else {key: value})
    return None


@pytest.mark.parametrize("name", MODULES)
def test_what_is_written_of_random_jobs_starts_as_many_processes_as_there_are_gpus(name: str) -> None:
    """Everybody looks at the first that a program can say."""
    jobs = filter(None, (drawn(name, seed) for seed in SEEDS))
    every = (one for one in (followed(name, job) for job in jobs) if one is not None)
    found = [*islice(every, None if runs_whole() else 1)]
    for wanted, files in found:
        assert _processes(files.launch[0], files.first) in (wanted.devices, None)
        assert not any(f": {old}\n" in files.first for old in trainer.OF_OLD_RELEASES)
    assert found or name in NEVER_AT_RANDOM


NEVER_AT_RANDOM = ("torchtune", "torchtitan")
"""Programs with few models, of which these draws may have none."""


def _processes(launch: str, text: str) -> int | None:
    """How many processes a command starts, None where the file says it."""
    words = launch + (text if launch.endswith("megatron.sh") else "")
    if "CUDA_VISIBLE_DEVICES=0 " in words or "single_device" in words:
        return 1
    found = [
        int(one[1])
        for pattern in (
            r"(?:--nproc_per_node |NPROC_PER_NODE=|--num[_-]processes |--num_gpus )(\d+)",
            r"(?:--nnodes |NNODES=|--num_nodes )(\d+)",
        )
        if (one := re.search(pattern, words))
    ]
    return prod(found) if found else None
