"""What people type for an option or a value is taken as it is meant, and an option given twice is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import Ran, run
from vramplan.catalog.scope import GPUS, MODELS, out_of
from vramplan.cli.commands import COMMANDS, OTHER_NAMES, build
from vramplan.cli.typed import other_names, shortcuts
from vramplan.errors import InputError
from vramplan.job import build_any_job, build_job, job_to_dict
from vramplan.options import table
from vramplan.options.option import FLAG, TEXTS, WORD, Option
from vramplan.options.spellings import NULL, OPEN, bare, meaning

pytestmark = pytest.mark.contract

PLAIN = ("gpt2", "-g", "v100")
LINEAR = ("llama-3.2-1b", "-g", "h100")  # whose layers are no Conv1D


def job_of(*words: str) -> dict[str, Any]:
    ran = run("fit", *words, "--format", "json")
    assert ran.code in (0, 3), ran
    found: dict[str, Any] = ran.document["job"]
    return found


def refused(*words: str) -> str:
    ran = run("fit", *words)
    assert (ran.code, ran.out) == (2, "")
    return ran.err


@pytest.mark.plain
@pytest.mark.sweep(24)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("gpt2", "-g", "v100"), ("-m", "gpt2", "-g", "v100")),
        (("gpt2", "v100"), ("-m", "gpt2", "-g", "v100")),
        (("gpt2", "8xA100-80GB", "--fsdp"), ("-m", "gpt2", "-g", "a100-80gb", "--gpus", "8", "--sharding", "fsdp")),
        (("gpt2", "-g", "8xA100-80GB"), ("-m", "gpt2", "-g", "a100-80gb", "--gpus", "8")),
        (("gpt2", "-g", "8 x a100-80gb"), ("-m", "gpt2", "-g", "a100-80gb", "--gpus", "8")),
        (("gpt2", "-g", "8*h100"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "-g", "h100 x8"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "2x8xh100"), ("-m", "gpt2", "-g", "h100", "--gpus", "16")),
        (("gpt2", "8", "h100"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "8", "x", "h100", "--seq", "64"), ("-m", "gpt2", "-g", "h100", "--gpus", "8", "--seq", "64")),
        (("gpt2", "h100x8"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "8xa100", "80gb"), ("-m", "gpt2", "-g", "a100-80gb", "--gpus", "8")),
        (("gpt2", "-g", "A100", "80GB", "--gpus", "8"), ("-m", "gpt2", "-g", "a100-80gb", "--gpus", "8")),
        (("gpt2", "RTX", "4090", "--seq", "64"), ("-m", "gpt2", "-g", "rtx-4090", "--seq", "64")),
        (("gpt2", "NVIDIA", "GeForce", "RTX", "4070", "Ti"), ("-m", "gpt2", "-g", "rtx-4070-ti")),
        (("gpt2", "2x", "RTX", "3060", "12GB"), ("-m", "gpt2", "-g", "rtx-3060", "--gpus", "2")),
        (("NVIDIA H200", "gpt2"), ("-m", "gpt2", "-g", "h200")),
        ((*PLAIN, "x2"), (*PLAIN, "--gpus", "2")),
        (("gpt2", "on", "8", "h100"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "on", "a", "v100"), ("-m", "gpt2", "-g", "v100")),
        (("bert-base", "v100", "--task", "SEQ_CLS"), ("bert-base", "v100", "--loss", "classification")),
        (("t5-small", "v100", "--max_source_length", "128"), ("t5-small", "v100", "--seq", "128")),
        ((*PLAIN, "x", "4"), (*PLAIN, "--gpus", "4")),
        (("Qwen2.5", "0.5B", "4090"), ("-m", "qwen2.5-0.5b", "-g", "rtx-4090")),
        (("llama", "3.2", "1b", "v100"), ("-m", "llama-3.2-1b", "-g", "v100")),
        (("gpt2", "v100", "--num_generations", "8", "--top-p", "0.9"), PLAIN),
        (("gpt2", "-g", "H100:8"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "-g", "gpu:a100:4"), ("-m", "gpt2", "-g", "a100", "--gpus", "4")),
        (("gpt2", "-g", "l40s*4"), ("-m", "gpt2", "-g", "l40s", "--gpus", "4")),
        (("gpt2", "-g", "a100x"), ("-m", "gpt2", "-g", "a100x")),
        (("gpt2", "--vram", "24 GiB"), ("-m", "gpt2", "-g", "24 GiB")),
        (("gpt2", "-g", "h100", "--gpu-count", "8"), ("-m", "gpt2", "-g", "h100", "--gpus", "8")),
        (("gpt2", "-g", "2x24 GiB"), ("-m", "gpt2", "-g", "24 GiB", "--gpus", "2")),
        ((*PLAIN, "--batch_size", "4"), (*PLAIN, "--micro-batch", "4")),
        ((*PLAIN, "--per_device_train_batch_size=4"), (*PLAIN, "--micro-batch", "4")),
        ((*PLAIN, "--max-length", "0.5k"), (*PLAIN, "--seq", "512")),
        ((*PLAIN, "--gas", "4", "--bs", "2"), (*PLAIN, "--gradient-accumulation-steps", "4", "--micro-batch", "2")),
        ((*PLAIN, "--global-batch", "1_024"), (*PLAIN, "--global-batch", "1024")),
        (("gpt2", "-g", "h100", "--dtype", "BFloat16"), ("gpt2", "-g", "h100", "--precision", "bf16")),
        ((*PLAIN, "--lora", "--lora-r", "16"), (*PLAIN, "--adapter", "lora", "--rank", "16")),
        ((*PLAIN, "--qlora"), (*PLAIN, "--adapter", "lora", "--quantization", "nf4")),
        ((*PLAIN, "--4bit"), (*PLAIN, "--adapter", "lora", "--quantization", "nf4")),
        (
            (*PLAIN, "--quantization", "int8", "--rank", "4"),
            (*PLAIN, "--lora", "--quantization", "int8", "--rank", "4"),
        ),
        ((*PLAIN, "--quantization", "none"), PLAIN),
        ((*PLAIN, "--adapter", "none", "--quantization", "none"), PLAIN),
        ((*PLAIN, "--lora", "--4bit"), (*PLAIN, "--adapter", "lora", "--quantization", "nf4")),
        ((*PLAIN, "--adapter", "qlora"), (*PLAIN, "--adapter", "lora", "--quantization", "nf4")),
        ((*PLAIN, "--use_peft"), (*PLAIN, "--adapter", "lora")),
        ((*PLAIN, "--use_peft", "True"), (*PLAIN, "--adapter", "lora")),
        ((*PLAIN, "--recompute-granularity", "full"), (*PLAIN, "--checkpointing", "full")),
        (
            ("gpt2", "8xa100", "--runtime", "megatron", "--use-distributed-optimizer"),
            ("-m", "gpt2", "-g", "8xa100", "--runtime", "megatron", "--sharding", "distributed-optimizer"),
        ),
        ((*PLAIN, "--gpus", "2", "--fsdp"), (*PLAIN, "--gpus", "2", "--sharding", "fsdp")),
        ((*PLAIN, "--gpus", "2", "--fsdp", "full_shard auto_wrap"), (*PLAIN, "--gpus", "2", "--sharding", "fsdp")),
        ((*PLAIN, "--gpus", "2", "--deepspeed", "zero_stage_2"), (*PLAIN, "--gpus", "2", "--sharding", "zero2")),
        ((*LINEAR, "--galore", "--rank", "64"), (*LINEAR, "--optimizer", "galore-adamw:64")),
        ((*LINEAR, "--optim", "apollo_adamw", "--rank", "8"), (*LINEAR, "--optimizer", "apollo-adamw:8")),
        ((*PLAIN, "--num-gpus", "2", "--zero", "3"), (*PLAIN, "--gpus", "2", "--sharding", "zero3")),
        ((*PLAIN, "--gpus", "2", "--sharding", "ZeRO-3"), (*PLAIN, "--gpus", "2", "--sharding", "zero3")),
        ((*PLAIN, "--nodes", "2", "--gpus", "4"), (*PLAIN, "--gpus", "8", "--devices-per-node", "4")),
        (("gpt2", "-g", "4xv100", "--nodes", "2"), (*PLAIN, "--gpus", "8", "--devices-per-node", "4")),
        ((*PLAIN, "--gradient_checkpointing", "True"), (*PLAIN, "--checkpointing", "full")),
        ((*PLAIN, "--gradient_checkpointing", "False"), (*PLAIN, "--checkpointing", "none")),
        ((*PLAIN, "--no-gradient-checkpointing"), (*PLAIN, "--checkpointing", "none")),
        ((*PLAIN, "--gc", "false", "--checkpointing", "sqrt"), (*PLAIN, "--checkpointing", "sqrt")),
        (
            ("tinyllama-1.1b", "-g", "h100", "--use_liger_kernel", "True"),
            ("tinyllama-1.1b", "-g", "h100", "--loss", "fused", "--liger-kernels", "rms-norm,glu,rope"),
        ),
        ((*PLAIN, "--liger", "false"), PLAIN),
        ((*PLAIN, "--bf16", "False"), (*PLAIN, "--precision", "fp32")),
        ((*PLAIN, "--bf16", "False", "--fp16", "False"), (*PLAIN, "--precision", "fp32")),
        ((*PLAIN, "--bf16=false", "--fp16"), (*PLAIN, "--precision", "fp16")),
        (("tinyllama-1.1b", "-g", "h100", "--fp8"), ("tinyllama-1.1b", "-g", "h100", "--precision", "fp8")),
        ((*PLAIN, "--lora-r", "16"), (*PLAIN, "--adapter", "lora", "--rank", "16")),
        ((*PLAIN, "--rank", "16", "--targets", "c_attn"), (*PLAIN, "--lora", "--rank", "16", "--targets", "c_attn")),
        ((*PLAIN, "--dora", "--rank", "16"), (*PLAIN, "--adapter", "dora", "--rank", "16")),
        (("GPT-2", "-g", "V-100"), PLAIN),
        (("gpt2", "-g", "h100", "--flash-attention"), ("gpt2", "-g", "h100", "--attention", "flash")),
        (
            (*PLAIN, "--optim", "adamw_torch_fused"),
            (*PLAIN, "--optimizer", "adamw", "--optimizer-implementation", "fused"),
        ),
        ((*LINEAR, "--attn-implementation", "flash_attention_3"), (*LINEAR, "--attention", "flash")),
        ((*PLAIN, "--precision", "O2"), (*PLAIN, "--precision", "mixed-fp16")),
        ((*PLAIN, "--qlora", "--quantization", "fp4"), (*PLAIN, "--qlora", "--quantization", "nf4")),
        (
            (*PLAIN, "--gpus", "8", "--sharding", "zero3", "--offload", "optim,params"),
            (*PLAIN, "--gpus", "8", "--sharding", "zero3", "--offload", "optimizer,parameters"),
        ),
        ((*PLAIN, "--optim", "paged_adamw_8bit"), (*PLAIN, "--optimizer", "adamw-8bit-paged")),
        ((*PLAIN, "--ema", "true"), (*PLAIN, "--ema")),
    ],
)
def test_a_spelling_is_the_job_that_is_meant(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert job_of(*typed) == job_of(*meant)


def test_a_name_that_ends_in_x1_is_no_count() -> None:
    assert "no GPU profile 'Example X1'" in refused("gpt2", "-g", "Example X1")


WORDED = [(row, text) for row in table.TABLE for text in row.spellings]


def takes(row: Option, word: str) -> bool:
    """Whether it is a word of a key, be it one with a number behind it, `galore-adamw:128`, or nothing.

    A list of layers may have any name.
    """
    known = [(one.split(":")[0], ":" in one) for one in row.words]
    return word in (NULL, *row.words) or (row.kind == TEXTS and not row.words) or (word.split(":")[0], True) in known


@pytest.mark.parametrize(("row", "text"), WORDED, ids=lambda one: one if isinstance(one, str) else one.key)
def test_every_spelling_means_a_word_of_its_key_in_any_case(row: Option, text: str) -> None:
    assert row.kind in (WORD, TEXTS)
    assert bare(text) == text  # else no text leads to it
    assert text not in row.words or row.spellings[text].word == text
    for written in (text, text.upper(), text.replace("-", "_").title()):
        found = meaning(written, row.words, row.spellings)
        assert written in row.words or (found is not None and takes(row, found.word))
    for key, word in row.spellings[text].also:
        other = table.find(key)
        assert word in (("true", "false") if other.kind == FLAG else other.words) or other.kind == TEXTS


def test_no_open_spelling_is_taken() -> None:
    """But by the formats that weights are rounded to in training: torchao calls them so. A key without spellings, as
    where DeepSpeed puts states, asks for none of them.
    """
    rows = [row for row in table.TABLE if row.group != "qat" and row.spellings]
    for text in OPEN:
        assert not any(text in row.spellings or text in row.words for row in rows)


def test_what_a_spelling_leaves_open_is_assumed() -> None:
    told = {
        one.key: one.why for one in build_any_job({"model": "gpt2", "gpu": "h100", "sequence_length": "1k"}).assumptions
    }
    assert "1024" in told["sequence_length"]
    ran = run("fit", *PLAIN, "--batch-size", "2")
    assert "note: --batch-size is read as --micro-batch" in ran.err
    assert run("fit", *PLAIN, "--batch-size", "2", "--quiet") == Ran(0, "", "")


def test_a_job_with_spellings_fed_back_is_the_same() -> None:
    keys = {"model": "gpt2", "gpu": "8 x H100", "optimizer": "AdamW_Torch", "parallel": {"sharding": "FSDP2"}}
    job = build_job(keys)
    again = job_to_dict(build_job(job_to_dict(job)))
    assert again == job_to_dict(job)
    assert keys["parallel"] == {"sharding": "FSDP2"}  # what was given is not changed


TWICE = [
    (("--gpu", "4090", "--gpu", "3090"), ("--gpu 4090", "--gpu 3090")),
    (("--gpu", "4090", "-g", "4090"), ("--gpu 4090", "-g 4090")),
    (("-g", "v100", "--gpus", "2", "--data", "4"), ("--gpus 2", "--data 4")),
    (("-g", "v100", "--seq", "128", "--sequence-length", "64"), ("--seq 128", "--sequence-length 64")),
    (("-g", "v100", "-m", "gpt2-xl"), ("gpt2", "-m gpt2-xl")),
    (("-g", "v100", "--lora", "--adapter", "dora"), ("--lora", "--adapter dora")),
    (("-g", "v100", "--fsdp", "--zero", "3"), ("--fsdp", "--zero")),
    (("-g", "v100", "--bs", "2", "--micro-batch", "2"), ("--bs 2", "--micro-batch 2")),
    (("-g", "v100", "--ema", "--no-ema"), ("--ema", "--no-ema")),
    (("-g", "v100", "--json", "--format", "yaml"), ("--json", "--format yaml")),
]


@pytest.mark.parametrize(("words", "named"), TWICE)
def test_an_option_given_twice_names_both(words: tuple[str, ...], named: tuple[str, ...]) -> None:
    told = run("fit", "gpt2", *words).err
    assert "is given twice" in told
    assert all(name in told for name in named)


def test_an_option_that_a_remedy_repeats_is_to_be_replaced() -> None:
    told = run("fit", "gpt2", "-g", "v100", "--micro-batch", "16", "--micro-batch", "4").err
    assert "put --micro-batch 4 in its place" in told
    assert "in its place" not in run("fit", "gpt2", "-g", "v100", "--gpu", "v100").err


@pytest.mark.parametrize("command", ["fit", "checkpoints", "timeline", "explain", "walkthrough", "measure"])
def test_no_option_of_a_job_is_taken_twice(command: str) -> None:
    rows = table.parameters()
    for one in build(command).params:
        if one.name in rows and rows[one.name].kind == WORD:
            word = rows[one.name].words[0]
            ran = run(command, one.opts[0], word, one.opts[0], word)
            assert (ran.code, "is given twice" in ran.err) == (2, True)


def test_lists_may_be_given_in_parts() -> None:
    both = run("fit", *PLAIN, "--print", "verdict", "--print", "name")
    assert both.out == "fits\ngpt2 on v100\n" == run("fit", *PLAIN, "--print", "verdict,name").out
    split = job_of(*PLAIN, "--lora", "--targets", "c_attn", "--targets", "c_fc")
    assert split == job_of(*PLAIN, "--lora", "--targets", "c_attn,c_fc")


@pytest.mark.parametrize("option", ["--frozen", "--offload", "--modules-to-save", "--targets", "--model"])
@pytest.mark.parametrize("value", ["", ",", " "])
def test_an_empty_value_is_no_way_to_leave_an_option_out(option: str, value: str) -> None:
    words = ("-g", "v100", "--lora", option, value, *(() if option == "--model" else ("gpt2",)))
    assert run("fit", *words).code == 2


def test_contradictions_are_refused() -> None:
    assert "2 GPUs" in refused("gpt2", "-g", "2xv100", "--gpus", "4")
    assert "contradicts" in refused(*PLAIN, "--qlora", "--quantization", "int8")
    assert "contradicts" in refused(*PLAIN, "--optim", "adamw_torch_fused", "--optimizer-implementation", "foreach")
    assert "how many GPUs" in refused(*PLAIN, "--nodes", "2")
    assert "differ" in refused(*PLAIN, "--nodes", "2", "--gpus", "4", "--devices-per-node", "8")
    told = "note: 16 GPUs on each of 2 nodes, 32 in all; where 16 are all: "
    assert told + "--gpus 8" in run("fit", *PLAIN, "--nodes", "2", "--gpus", "16").err
    told = "note: 16 GPUs in all, 8 on each of 2 nodes; where each node has 16: --gpu 32xv100"
    assert told in run("fit", "gpt2", "16xv100", "--nodes", "2").err
    assert job_of("gpt2", "16xv100", "--nodes", "2") == job_of("gpt2", "8xv100", "--nodes", "2")
    assert not run("fit", "gpt2", "8xv100", "--nodes", "2").err
    assert job_of(*PLAIN, "--qlora", "--quantization", "nf4-double")["quantization"] == "nf4-double"


def test_a_count_before_the_gpu_is_of_all_devices() -> None:
    keys = {"model": "llama-3.1-8b", "gpu": "8xh100", "precision": "mixed-bf16", "runtime": "megatron"}
    assert job_to_dict(build_job({**keys, "parallel": {"tensor": 4}}))["parallel"]["data"] == 2
    with pytest.raises(InputError, match="no multiple"):
        build_job({**keys, "parallel": {"tensor": 3}})


@pytest.mark.sweep
def test_remedies_keep_the_count_before_the_gpu() -> None:
    words = ("llama-3.1-8b", "--gpu", "8xa100-40gb", "--seq", "4096", "--micro-batch", "4")
    remedies = run("fit", *words, "--format", "json").document["remedies"]
    gpu = next(one for one in remedies if "gpu" in one["change"])
    assert re.match(r"--gpu 8x", gpu["option"])
    again = run("fit", *words[:1], *gpu["option"].split(), *words[3:], "--format", "json").document
    assert (again["verdict"], again["job"]["parallel"]["data"]) == (gpu["verdict"], 8)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("gpt2", "v10"), "did you mean v100"),
        (("gpt2", "colab"), "--gpu t4"),
        (("gpt2", "nosuchcard", "--lora"), "--gpu '24 GiB'"),
        (("gpt2", "rtx 4090 48gb"), "did you mean rtx-4090? one like it with that memory is --gpu '48 GiB'"),
        (("largest", "4090"), "vramplan compare -m qwen3-0.6b,qwen3-1.7b,qwen3-4b,"),
        (("biggest", "24gb", "--qlora"), "vramplan compare -m qwen3-0.6b,"),
        (("-m", "largest model", "-g", "4090"), "vramplan compare -m qwen3-0.6b,"),
        (("gpt2", "v10", "-g", "t4"), "a GPU is given as --gpu v10"),
        ((*PLAIN, "--deepspeed", "ds_config.json"), "there is no file 'ds_config.json' (name it with its folder)"),
        ((*PLAIN, "--deepspeed", "zero3_bf16.json"), "or --zero 3, which its name says"),
        ((*PLAIN, "--deepspeed", "examples/deepspeed/ds_z2_config.json"), "or --zero 2, which its name says"),
        ((*PLAIN, "--deepspeed", "fast"), "give the file itself"),
        (("gpt2", "M3", "Max"), "Apple's GPUs are not modelled"),
        (("gpt2", "M2 Ultra 192GB"), "Apple's GPUs are not modelled"),
        (("gpt2", "3060", "24GB"), "what is '24GB'?"),
        (("gpt2", "a100", "h100"), "vramplan compare -m gpt2 -g G,h100"),
        ((*PLAIN, "--set", "micro_batch_size=4"), "an option replaces what a file says"),
        (("-g", "3060", "--qlora"), "`vramplan compare -m A,B,C -g G` says which of several fit"),
        (("torchrun train.py --bf16 True", "t4"), "the pasted command: is of no training program"),
        (("t4", "--", "python", "train.py", "--bf16"), "the pasted command: is of no training program"),
        ((*PLAIN, "--grpo", "--vllm-gpu-memory-utilization", "0.3"), "--reserve SIZE"),
        ((*PLAIN, "--runtime", "axolotl"), "vramplan fit axolotl.yaml"),
        ((*PLAIN, "--runtime", "PyTorch Lightning"), "--runtime pytorch"),
        ((*PLAIN, "--runtime", "verl"), "samples answers"),
        ((*PLAIN, "8"), "such as --gpus 8 or --micro-batch 8"),
        ((*PLAIN, "wibble"), "what is 'wibble'?"),
        ((*PLAIN, "--kv-cache"), "gguf-parser"),
        ((*PLAIN, "--inference"), "training only"),
        ((*PLAIN, "--max-iters", "1"), "changes neither memory"),
        ((*PLAIN, "--cpu-offload"), "--offload"),
        ((*PLAIN, "--bach-size", "1"), "--micro-batch"),
        ((*PLAIN, "--print", "device_gib"), "peak.device_bytes"),
        ((*PLAIN, "--sharding", "hybrid_shard"), "hsdp:8"),
        ((*PLAIN, "--context", "32768"), "--seq"),
        (("sdxl", "-g", "4090"), "diffusion"),
        (("facebook/seamless-m4t-large", "-g", "4090"), "speech"),
        (("microsoft/unispeech-large-1500h-cv", "-g", "4090"), "speech"),
        (("longformer-base-4096", "-g", "4090"), "of encoders of text BERT"),
        (("google/umt5-small", "-g", "4090"), "of encoder-decoders T5"),
        (("mamba2-130m", "-g", "4090"), "state-space"),
        (("llama.gguf", "-g", "4090"), "training only"),
        (("gpt2", "-g", "colab"), "--gpu t4"),
        (("gpt2", "-g", "intel-max-1550"), "Intel"),
        (("gpt2", "-g", "m3-max"), "Apple"),
        (("gpt2", "-g", "7900xtx"), "Radeon"),
        (("gpt2", "-g", "dgx-a100"), "did you mean 8xa100?"),
        (("gpt2", "-g", "gpu_16x_h100_sxm5"), "did you mean 16xh100-sxm5?"),
        (("gpt2", "-g", "BM.GPU.H100.8"), "did you mean 8xh100?"),
        (("gpt2", "-g", "a100-3g.20gb"), "a size: --gpu '19.5 GiB'"),
        (("gpt2", "-g", "cuda:1"), "local:1"),
        (("gpt2", "t4", "h100"), "vramplan compare -m gpt2 -g G,h100"),
        (("gpt2", "gpt2-medium", "t4"), "vramplan compare -m gpt2,gpt2-medium -g G"),
        (("gpt2", "and", "bert-base", "-g", "h100"), "vramplan compare -m gpt2,bert-base -g G"),
        (("gpt2", "GTX 1690 Ti"), "there is no GPU profile 'GTX 1690 Ti'"),
        ((*PLAIN, "--task", "translation"), "the task belongs to the model"),
        ((*PLAIN, "--torchtitan"), "--runtime torchtitan"),
        ((*PLAIN, "--galore"), "--optimizer galore"),
        ((*PLAIN, "--lisa"), "--trained-blocks lisa:N"),
        ((*PLAIN, "--fsdp2"), "--sharding fsdp2"),
        ((*PLAIN, "--weight-dtype", "int8"), "--quantization int8"),
        ((*PLAIN, "--ppo"), "--loss standard"),
        ((*PLAIN, "--offload"), "(parameters, gradients, optimizer, activations)"),
    ],
)
def test_what_is_not_there_leads_to_what_is_meant(words: tuple[str, ...], hint: str) -> None:
    assert hint in refused(*words)


def test_no_shipped_profile_is_out_of_scope() -> None:
    for kind in ("gpus", "models"):
        for line in run(kind, "--format", "json").document[kind]:
            assert out_of(kind, line["name"]) is None
    assert len(MODELS) > 3
    assert len(GPUS) > 3


@pytest.mark.parametrize(
    "name", ["openbmb/MiniCPM-V-2_6", "deepseek-ai/Janus-Pro-7B", "deepseek-ai/deepseek-vl2", "Phi-3.5-vision-instruct"]
)
def test_a_model_of_images_that_is_not_modelled_leads_to_its_text(name: str) -> None:
    assert "give the config.json of the text part" in run("fit", name, "-g", "a100").err


def test_commands_have_other_names() -> None:
    for other, name in OTHER_NAMES.items():
        assert run(other, "--help").out == run(name, "--help").out
    assert "training only" in run("serve").err


def test_broken_json_is_told_plainly(tmp_path: Any) -> None:
    file = tmp_path / "jobs.json"
    file.write_text('{"version": 1,\n "jobs" []}', "utf-8")
    assert run("check", str(file)).err == f"error: {file}:2:9: not JSON: a colon is missing behind the key\n"


def test_names_of_options_mean_one_thing_each() -> None:
    for command in COMMANDS:
        built = build(command)
        if not any(one.name == "model" for one in built.params) or built.name in ("profiles",):
            continue
        declared = [name for one in built.params for name in (*one.opts, *one.secondary_opts)]
        assert len(declared) == len(set(declared))
        assert not set(declared) & ({*other_names(built)} | {*shortcuts(built)})
        also = [name for row in table.TABLE for name in row.also]
        assert len(also) == len(set(also))


def test_help_has_the_everyday_options_and_the_whole_help_all() -> None:
    rows = table.parameters()
    for command in ("fit", "checkpoints", "timeline", "explain", "walkthrough"):
        short, whole = run(command, "--help").out, run(command, "--help-all").out
        for text in (short, whole):
            assert max(len(line) for line in text.splitlines() if not line.startswith("    vramplan")) <= 80
        options = re.findall(r"^  (-.*)", short, re.M)
        assert 20 <= len(options) <= 30, options  # about 25, as people asked
        for one in build(command).params:
            if one.name not in rows or one.help != rows[one.name].description:  # explain has a --tensor of its own
                continue
            name = re.escape(one.opts[0])
            assert re.search(rf"{name}\b", whole)
            assert bool(re.search(rf"^  (?:-\w, )?{name}[ ,]", short, re.M)) is rows[one.name].everyday
    assert sum(row.everyday for row in rows.values()) <= 20
    assert all(row.kind != FLAG or not row.everyday for row in rows.values())


@pytest.mark.plain
def test_replicas_of_several_gpus_are_told() -> None:
    split = ("fit", "-m", "llama-3-70b", "--tensor", "8", "--pipeline", "4", "--print", "verdict")
    told = "note: --gpus counts replicas: 64 of 32 GPUs each (--tensor 8 --pipeline 4), 2,048 in all; --gpu 64xh100"
    assert told in run(*split, "-g", "h100", "--gpus", "64").err
    for other in (("-g", "64xh100"), ("-g", "h100", "--data", "64"), ("-g", "h100", "--nodes", "8", "--gpus", "8")):
        assert "counts replicas" not in run(*split, *other).err
    assert "counts replicas" not in run(*split, "-g", "h100", "--gpus", "64", "--quiet").err
    assert "--gpu 24xh100 counts all" in run(*split[:5], "-g", "h100", "--gpus", "3").err
    assert "note: --num-gpus counts replicas" in run(*split, "-g", "h100", "--num-gpus", "64").err


@pytest.mark.plain
@pytest.mark.parametrize("data", [("--dp", "2"), ("--gpus", "2")])
def test_a_number_of_all_gpus_beside_replicas_is_no_news(data: tuple[str, str]) -> None:
    words = ("fit", "-m", "llama-3.1-8b", "--tp", "2", *data, "--print", "job.parallel.data")
    ran = run(*words, "-g", "4xa100")
    assert (ran.out.strip(), ran.err) == ("2", "")
    told = run(*words, "-g", "8xa100").err
    assert "counts replicas" not in told
    assert "the 2 replicas (--gpus, --dp)" in told


def test_a_job_of_a_file_without_its_option(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\ndefaults: {gpu: v100, sequence_length: 128}\njobs:\n"
        "- {name: a, model: gpt2, micro_batch_size: 2}\n- {name: b, model: gpt2-medium}\n"
    )
    one = f"{file}#b"
    assert run("fit", one).out == run("fit", "--job", one).out
    assert run("compare", str(file)).out == run("compare", "--job", str(file)).out
    assert "walkthrough takes no job file" in run("walkthrough", str(file)).err
    axolotl = tmp_path / "axolotl.yaml"
    axolotl.write_text("base_model: meta-llama/Llama-3.1-8B\nsequence_len: 2048\nmicro_batch_size: 1\n")
    assert "walkthrough takes no file of a training program" in run("walkthrough", str(axolotl), "-g", "a100").err
    by_option = run("compare", "--config", str(axolotl), "-g", "a100,h100")
    assert run("compare", str(axolotl), "-g", "a100,h100").out == by_option.out
    assert "is a job file of vramplan already" in run("read", str(file)).err
    for command in ("check", "validate"):
        assert "a gate for one job without a file" in run(command, "-m", "gpt2", "-g", "v100").err


def test_a_file_is_the_value_of_the_option_that_its_program_has(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    for words in (("--deepspeed", str(file)), (f"--deepspeed_config={file}",), (str(file),)):
        found = job_of("gpt2", "4xa100", "--seq", "64", *words)["parallel"]
        assert (found["sharding"], found["data"]) == ("zero2", 4)
    assert job_of("gpt2", "4xa100", "--seq", "64", "--deepspeed", "zero2")["parallel"]["sharding"] == "zero2"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("largest", "4090", "--lora"), "vramplan compare qwen3-0.6b,"),
        (("largest", "batch", "on", "v100"), "--max micro-batch"),
        (("solve", "gpt2", "v100"), "--max sequence"),
        (("what", "fits", "on", "a", "3060"), "vramplan fit -m M -g G"),
        (("check", "jobs.yaml", "-g", "l40s"), "vramplan fit FILE#NAME -g G"),
        (("check", "gpt2", "v100", "--qlora"), "vramplan fit FILE#NAME -g G"),
    ],
)
def test_what_is_asked_without_its_command_leads_to_it(words: tuple[str, ...], hint: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert hint in ran.err


@pytest.mark.parametrize("key", ["peak_gib", "peak_memory_gb", "memory_bytes", "vram_gb"])
def test_a_key_with_a_unit_of_its_own_leads_to_the_bytes(key: str) -> None:
    assert "did you mean peak.device_bytes?" in refused(*PLAIN, "--print", key)
