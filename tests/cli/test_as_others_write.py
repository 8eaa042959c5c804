"""What other programs and shops write: the words around a GPU, lists, mappings, two options that say one thing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import refused, run
from vramplan.catalog.gpus import find_gpu, names_in
from vramplan.cli.written import listed, settings_in, sharding_in
from vramplan.job.given.keyed import size_in
from vramplan.job.given.spelled import counted

pytestmark = [pytest.mark.contract, pytest.mark.plain]

PLAIN = ("gpt2", "v100", "--micro-batch", "1")


def job_of(*words: str) -> dict[str, Any]:
    ran = run("fit", *words, "--print", "job")
    assert ran.code in (0, 3), ran
    found: dict[str, Any] = ran.document
    return found


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("RunPod A40", "a40"),
        ("colab a100", "a100-40gb"),
        ("Colab Pro A100", "a100-40gb"),
        ("colab pro T4", "t4"),
        ("colab-l4", "l4"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("lambda labs h100 gpu", "h100-80gb"),
        ("A10 GPUs", "a10"),
    ],
)
def test_who_makes_or_rents_a_card_is_no_part_of_its_name(typed: str, meant: str) -> None:
    assert find_gpu(typed).name == meant


@pytest.mark.parametrize(
    ("typed", "count", "meant"),
    [
        ("kaggle-2xt4", 2, "t4"),
        ("vast.ai 4090 x4", 4, "rtx-4090"),
        ("aws p4d.24xlarge", 8, "a100-40gb"),
        ("2x A40 GPUs", 2, "a40"),
    ],
)
def test_cards_are_counted_beside_the_name_of_a_cloud(typed: str, count: int, meant: str) -> None:
    found = counted(typed)
    assert found is not None
    assert (found[0], find_gpu(found[1]).name) == (count, meant)


def test_what_is_no_word_around_a_name_stays() -> None:
    assert list(names_in("A100-SXM4-80GB")) == ["A100-SXM4-80GB"]
    assert list(names_in("colab")) == ["colab"]
    assert [size_in(one) for one in ("24 GB VRAM", "24 gb of vram", "24 GiB", "4090")] == [
        *("24 GB", "24 gb", "24 GiB"),
        None,
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("gpt2", "24", "gb", "vram"), ("gpt2", "-g", "24 gb")),
        (("gpt2", "8", "A100", "GPUs"), ("gpt2", "-g", "a100", "--gpus", "8")),
        (("gpt2", "kaggle", "2xt4"), ("gpt2", "-g", "t4", "--gpus", "2")),
        (("gpt2", "--gpus", "8xh100"), ("gpt2", "-g", "h100", "--gpus", "8")),
        ((*PLAIN[:2], "-b", "4"), (*PLAIN[:2], "--micro-batch", "4")),
        ((*PLAIN[:2], "--bsz", "4"), (*PLAIN[:2], "--micro-batch", "4")),
        ((*PLAIN, "--lora", "-r", "32"), (*PLAIN, "--lora", "--rank", "32")),
        ((*PLAIN, "--gradient_checkpointing_kwargs", '{"use_reentrant": true}'), (*PLAIN, "--checkpoint-reentrant")),
        (
            (*PLAIN, "--lora", "--target_modules", '["attn.c_attn", "mlp.c_proj"]'),
            (*PLAIN, "--lora", "--targets", "attn.c_attn,mlp.c_proj"),
        ),
        (
            (*PLAIN, "--load_in_4bit", "--bnb_4bit_use_double_quant", "True"),
            (*PLAIN, "--lora", "--quantization", "nf4-double"),
        ),
        (
            ("gpt2", "2xh100", "--fsdp", "--fsdp_offload_params", "true", "--micro-batch", "1"),
            ("gpt2", "2xh100", "--fsdp", "--offload", "parameters,gradients,optimizer", "--micro-batch", "1"),
        ),
        (
            ("gpt2", "2xh100", "--fsdp", "full_shard auto_wrap offload", "--micro-batch", "1"),
            ("gpt2", "2xh100", "--fsdp", "--offload", "parameters,gradients,optimizer", "--micro-batch", "1"),
        ),
        (
            ("gpt2", "2xh100", "--fsdp", "--fsdp_config", '{"activation_checkpointing": true}', "--micro-batch", "1"),
            ("gpt2", "2xh100", "--fsdp", "--checkpointing", "full", "--micro-batch", "1"),
        ),
        (
            ("tinyllama", "h100", "--peft_config", '{"r": 4, "target_modules": ["q_proj", "v_proj"]}', *PLAIN[2:]),
            ("tinyllama", "h100", "--lora", "--rank", "4", "--targets", "q_proj,v_proj", *PLAIN[2:]),
        ),
        (
            ("gpt2", "2xh100", "--fsdp_sharding_strategy", "SHARD_GRAD_OP", *PLAIN[2:]),
            ("gpt2", "2xh100", "--sharding", "fsdp-grad-op", *PLAIN[2:]),
        ),
        ((*PLAIN, "--lr_scheduler_kwargs", '{"num_cycles": 2}'), PLAIN),
        ((*PLAIN, "--bnb_4bit_compute_dtype", "float16", "--4bit"), (*PLAIN, "--precision", "fp16", "--4bit")),
        (("gpt2", "h100", "--bnb_4bit_compute_dtype", "float16", "--bf16"), ("gpt2", "h100", "--bf16")),
        (
            ("tinyllama", "h100", "--use_galore", "--galore_rank", "64", "--micro-batch", "1"),
            ("tinyllama", "h100", "--optimizer", "galore-adamw:64", "--micro-batch", "1"),
        ),
        (
            ("tinyllama", "h100", "--optimizer", "apollo-mini", *PLAIN[2:]),
            ("tinyllama", "h100", "--optimizer", "apollo-adamw:1", *PLAIN[2:]),
        ),
        (
            ("tinyllama", "h100", "--optimizer", "galore-8bit", *PLAIN[2:]),
            ("tinyllama", "h100", "--optimizer", "galore-adamw-8bit:128", *PLAIN[2:]),
        ),
        (
            ("tinyllama", "h100", "--liger_kernels", "rms_norm,swiglu", *PLAIN[2:]),
            ("tinyllama", "h100", "--liger-kernels", "rms-norm,glu", *PLAIN[2:]),
        ),
        ((*PLAIN, "--qlora", "--bnb-version", "0.43.0"), (*PLAIN, "--qlora", "--bitsandbytes", "0.43.0")),
        (
            ("tinyllama", "h100", "--use-badam", *PLAIN[2:]),
            ("tinyllama", "h100", "--trained-blocks", "badam", *PLAIN[2:]),
        ),
        (("ViT-B/16", "v100", *PLAIN[2:]), ("vit-base", "v100", *PLAIN[2:])),
        (("bert-base", "v100", "--num_labels", "3"), ("bert-base", "v100", "--loss", "classification")),
        (("bert-base", "v100", "--mlm", "--mlm_probability", "0.15"), ("bert-base", "v100")),
        (
            ("gpt2", "2xh100", "--fsdp", "--fsdp_transformer_layer_cls_to_wrap", "GPT2Block", "--micro-batch", "1"),
            ("gpt2", "2xh100", "--fsdp", "--micro-batch", "1"),
        ),
        (
            ("smolvlm", "h100", "--micro-batch", "1", "--freeze-vision-tower", "True"),
            ("smolvlm", "h100", "--micro-batch", "1", "--frozen", "vision_encoder"),
        ),
        (("gpt2", "2xh100", "--deepspeed", "z3_offload"), ("gpt2", "2xh100", "--sharding", "zero3-offload")),
        ((*PLAIN, "--num_train_epochs", "3", "--completion_only_loss", "--center_rewards_coefficient", "0.01"), PLAIN),
        ((*PLAIN, "--dataset_name", "alpaca", "--template", "llama3", "--pref_beta", "0.1"), PLAIN),
        ((*PLAIN, "--stage", "dpo", "--pref_loss", "orpo"), (*PLAIN, "--loss", "orpo")),
        ((*PLAIN, "--dpo", "--loss_type", "ipo"), (*PLAIN, "--loss", "dpo")),
        (
            (*PLAIN, "--stage", "dpo", "--use_liger_kernel"),
            (*PLAIN, "--loss", "dpo", "--liger-kernels", "rms-norm,glu,rope"),
        ),
        ((*PLAIN, "--use_dora", "True", "--bias", "none"), (*PLAIN, "--adapter", "dora")),
        ((*PLAIN, "--use_peft", "--4bit", "--nf4"), (*PLAIN, "--lora", "--quantization", "nf4")),
        ((*PLAIN, "--activation_checkpoint.mode", "full"), (*PLAIN, "--checkpointing", "full")),
        (
            ("gpt2", "2xh100", "--fsdp", "--fsdp_sharding_strategy", "FULL_SHARD"),
            ("gpt2", "2xh100", "--sharding", "fsdp"),
        ),
    ],
)
def test_options_of_other_programs_are_read(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert job_of(*typed) == job_of(*meant)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("gpt2", "--gpus", "v100"), "--gpus v100 is read as --gpu v100"),
        (("bert-base", "v100", "--mlm"), "--mlm is the loss of an encoder"),
        (
            ("tinyllama", "h100", "--galore", "--rank", "64", "--8bit-adam", "--micro-batch", "1"),
            "--galore and --8bit-adam are read as --optimizer galore-adamw-8bit",
        ),
        (
            ("gpt2", "2xh100", "--fsdp", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "--micro-batch", "1"),
            "each block is a unit of FSDP",
        ),
    ],
)
def test_how_it_is_read_is_said(typed: tuple[str, ...], told: str) -> None:
    assert told in run("fit", *typed).err
    assert run("fit", *typed, "--quiet").err == ""


def test_two_optimizers_that_say_one_thing_are_one() -> None:
    typed = ("tinyllama", "h100", "--galore", "--rank", "64", "--8bit-adam", "--micro-batch", "1")
    job = job_of(*typed)
    assert (job["optimizer"], job["adapter"]) == ("galore-adamw-8bit:64", None)
    assert "is given twice" in refused("fit", *PLAIN, "--lion", "--adafactor").err
    assert "is given twice" in refused("fit", *PLAIN, "--optim", "adamw_8bit", "--optim", "galore_adamw:8").err


def test_targets_behind_one_another_are_one_list() -> None:
    words = ("tinyllama", "h100", "--micro-batch", "1", "--lora_target_modules", "q_proj", "v_proj", "--rank", "4")
    assert job_of(*words)["adapter"]["targets"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("check", "jobs.yaml", "--min-free", "4GiB"), "what has to stay free is --reserve, in a file the key reserve"),
        (("check", "jobs.yaml", "--max-gb", "20"), "what has to stay free is --reserve"),
        (("scale", "gpt2", "h100", "--min-gpus", "8"), "--gpus 8,16,32 names the numbers"),
        (("fit", "gpt2", "v100", "--seq", "512,1k"), "`vramplan compare` takes a list"),
        (("fit", "gpt2", "v100", "--gpus", "1,2"), "`vramplan compare` takes a list"),
        (("fit", "gpt2", "v100", "-s", "512"), "--seq N is the length of a sequence"),
        (("fit", "gpt2", "2xv100", "--fsdp", "full_shard quux"), "does not take the value"),
        (("scale", "gpt2", "1-64", "h100"), "--to 64 is where it ends"),
        (("largest", "4090", "--qlora"), "vramplan compare qwen3-0.6b,qwen3-1.7b,"),
        (("largest", "4090", "--qlora"), "qwen3-32b 4090 --qlora` says which of one family fit"),
        (("scale", "gpt2", "h100", "--from", "8"), "vramplan compare MODEL GPU --gpus 8,16,32"),
        (("fit", "accelerate", "estimate-memory", "gpt2", "-g", "t4"), "did you mean vramplan fit gpt2 -g t4?"),
        (("fit", "gpt2", "2x 3090 nvlink"), "leave NVLink out"),
        (("fit", "gpt2", "v100", "--distill"), "--teacher MODEL"),
        (("fit", "gpt2", "v100", "--tokens", "compute-optimal"), "--compute-optimal"),
        (
            ("fit", "tinyllama", "2xh100", "--fsdp", "--context", "2", "--context-communication", "ulysses"),
            "exchanging heads is DeepSpeed's: --sharding zero3 --context N",
        ),
        (("fit", "gpt2", "v100", "--gradient_checkpointing_kwargs", "{use_reentrant}"), "No such option"),
    ],
)
def test_what_cannot_be_read_names_the_way(words: tuple[str, ...], right: str) -> None:
    assert right in refused(*words).err


@pytest.mark.parametrize(
    ("file", "option"),
    [("ds_config_zero2.json", "--zero 2"), ("fsdp.yaml", "--fsdp"), ("zero_stage_3.yaml", "--zero 3")],
)
def test_the_name_of_a_file_that_is_not_there_says_how_states_are_shared(file: str, option: str) -> None:
    assert sharding_in(file) == option
    launched = ("accelerate", "launch", "--config_file", file, "--num_processes", "8", "sft.py")
    error = refused("fit", "--", *launched, "--model_name_or_path", "gpt2-xl", "-g", "h100").err
    assert f"({option})" in error
    assert sharding_in("config.yaml") is None


def test_lists_and_mappings_of_programs() -> None:
    assert listed("q_proj v_proj") == listed("('q_proj', 'v_proj')") == listed("q_proj,v_proj") == "q_proj,v_proj"
    assert listed(r"all-but:layers\.[0-9]+") == r"all-but:layers\.[0-9]+"
    assert settings_in('{"use_reentrant": false, "n": 2}') == ["--use_reentrant", "false", "--n", "2"]
    assert settings_in('{"a": {"b": 1}}') is None
    assert settings_in('{"a": [1, "b"]}') == ["--a", "1,b"]
    assert settings_in("{nothing") is None


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("bigscience/mt0-large", "mt5-large"),
        ("google/mt5-small", "mt5-small"),
        ("CohereForAI/aya-101", "mt5-xxl"),
        ("ai-forever/rugpt3large_based_on_gpt2", "rugpt3large"),
        ("google/gemma-1.1-7b-it", "gemma-7b"),
        ("google/codegemma-7b-it", "gemma-7b"),
        ("mythomax-13b", "llama-2-13b"),
    ],
)
def test_names_of_the_same_shape(name: str, profile: str) -> None:
    assert job_of(name, "h200", "--micro-batch", "1")["model"]["name"] == profile


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("nvidia/mit-b5", "detectors and segmenters are not modelled"),
        ("openvla/openvla-7b", "text model of the same size"),
    ],
)
def test_a_model_of_another_kind_leads_somewhere(name: str, way: str) -> None:
    assert way in refused("fit", name, "t4").err


def test_a_copy_of_unsloth_has_the_experts_of_gpt_oss_in_4_bits() -> None:
    words = ("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "h100", "--micro-batch", "1")
    job = job_of(*words)
    assert (job["quantization"], job["quantized_experts"]) == ("nf4-double", True)
    assert job_of(*words, "--no-quantized-experts")["quantized_experts"] is False
    assert "Unsloth's copies have the experts" in run("fit", *words, "--details").out
    assert job_of("unsloth/Qwen3-30B-A3B-bnb-4bit", *words[1:])["quantized_experts"] is False
    error = refused("fit", "gpt-oss-20b", "t4", "--runtime", "unsloth", "--qlora").err
    assert "--quantized-experts where they are in few bits too" in error
