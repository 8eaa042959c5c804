"""Words beside the options: techniques, numbers with what they count, the model and the GPU, in any order."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from tests.cli.running import refused, run
from vramplan.cli.near import near, of_words
from vramplan.options.shortcuts import SHORTCUTS

pytestmark = [pytest.mark.contract, pytest.mark.plain]

TINY = ("tinyllama", "h100")
ONE = ("--micro-batch", "1")


def job_of(*words: str) -> dict[str, Any]:
    ran = run("fit", *words, "--print", "job")
    assert ran.code in (0, 3), ran
    found: dict[str, Any] = ran.document
    return found


@pytest.mark.sweep(8)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("lora", "r=8", "4k"), ("--lora", "--rank", "8", "--seq", "4k")),
        (("bs8", "ctx", "512", "tokens"), ("--micro-batch", "8", "--seq", "512")),
        (("batch size 2", "max length 200"), ("--micro-batch", "2", "--seq", "200")),
        (("full finetune", "grad ckpt"), ("--adapter", "none", "--checkpointing", "full")),
        (("flash", "attn", "2", "8bit", "adam"), ("--attention", "flash", "--optimizer", "adamw-8bit")),
        (("8-bit", "paged", "adamw"), ("--optimizer", "adamw-8bit-paged")),
        (("adafactor optimizer", "pure bf16"), ("--optimizer", "adafactor", "--precision", "pure-bf16")),
        (("galore", "rank", "64"), ("--optimizer", "galore-adamw:64")),
        (("QLoRA,", "r=16,", "2048"), ("--qlora", "--rank", "16", "--seq", "2048")),
        (("lora r=16 alpha=32",), ("--lora", "--rank", "16", "--alpha", "32")),
        (("LoRA (r=8)", "all", "linear"), ("--lora", "--rank", "8", "--targets", "all-linear")),
        (("no gradient checkpointing",), ("--checkpointing", "none")),
        (("recompute", "none"), ("--checkpointing", "none")),
        (("sft", "packing", "liger"), ("--packing", "--liger")),
        (("with", "dpo", "and", "lora", "enabled"), ("--loss", "dpo", "--lora")),
        (("optim=adamw_8bit", "method=lora"), ("--optimizer", "adamw-8bit", "--lora")),
        (("4bit", "lora", "1024"), ("--4bit", "--lora", "--seq", "1024")),
        (("lora", "16"), ("--lora", "--rank", "16")),
        (("qlora", "lora", "r", "8"), ("--qlora", "--rank", "8")),
        (("--stage", "dpo"), ("--loss", "dpo")),
        (("--stage", "sft", "--tf32", "True"), ("--precision", "tf32")),
        (("--lora", "--dora", "--lora_r", "8"), ("--adapter", "dora", "--rank", "8")),
        (("w/", "lora", "w/o", "gradient checkpointing"), ("--lora", "--checkpointing", "none")),
        (("lora,", "no", "grad", "ckpt"), ("--lora", "--checkpointing", "none")),
        (("batch", "size", "two", "seq", "1", "k"), ("--micro-batch", "2", "--seq", "1k")),
        (("全量微调", "上下文", "1k"), ("--adapter", "none", "--seq", "1k")),
        (("mit", "lora", "rang", "8"), ("--lora", "--rank", "8")),
        (("--runtime", "unsloth", "lora", "unsloth"), ("--runtime", "unsloth", "--lora")),
        (("--lora", "--model.lora_dropout", "0.1"), ("--lora", "--adapter-dropout", "0.1")),
        (("tokenizer.max_seq_len=512",), ("--seq", "512")),
    ],
)
def test_words_are_the_options_that_they_name(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    one = () if "--micro-batch" in meant else ONE
    assert job_of(*TINY, *typed, *one) == job_of(*TINY, *meant, *one)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("zero 3 offload",), ("--zero", "3", "--offload", "parameters,gradients,optimizer")),
        (("ds", "z2"), ("--zero", "2")),
        (("fsdp", "bf16"), ("--fsdp", "--bf16")),
        (("fsdp", "2"), ("--sharding", "fsdp2")),
        (("fsdp", "offload"), ("--fsdp", "--offload", "parameters,gradients,optimizer")),
        (("deepspeed zero stage 3",), ("--zero", "3")),
        (
            ("--zero_stage", "3", "--offload_optimizer_device", "cpu"),
            ("--zero", "3", "--offload", "optimizer,gradients", "--offload-optimizer-device", "cpu"),
        ),
        (("--zero_stage", "3", "--offload_optimizer_device", "none"), ("--zero", "3")),
    ],
)
def test_ways_to_share_the_states_are_words(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert job_of("gpt2", "2xh100", *typed, *ONE) == job_of("gpt2", "2xh100", *meant, *ONE)


@pytest.mark.sweep(20)
@pytest.mark.parametrize("words", list(permutations(("tinyllama", "8 x a100 80gb", "qlora", "rank 8", "2k"))))
def test_the_order_of_words_means_nothing(words: tuple[str, ...]) -> None:
    flags = ("tinyllama", "8xa100-80gb", "--qlora", "--rank", "8", "--seq", "2k", *ONE)
    sentence = " ".join(words)
    assert job_of(*words, *ONE) == job_of(*sentence.split(), *ONE) == job_of(sentence, *ONE) == job_of(*flags)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("gpt2", "laptop", "4080"), ("gpt2", "rtx-4080-laptop")),
        (("gpt2", "8gb 3070"), ("gpt2", "rtx-3070")),
        (("gpt2", "RTX 6000 Pro Blackwell 96GB"), ("gpt2", "rtx-pro-6000")),
        (("gpt2", "dual", "RTX", "3090s"), ("gpt2", "2xrtx-3090")),
        (("gpt2", "4*A100(80G)"), ("gpt2", "4xa100-80gb")),
        (("gpt2", "h100", "8x"), ("gpt2", "8xh100")),
        (("8", "gpus", "gpt2", "h100"), ("gpt2", "8xh100")),
        (("gpt2", "2", "nodes", "8xh100"), ("gpt2", "--nodes", "2", "8xh100")),
        (
            ("gpt2", "h100", "--num_machines", "2", "--num_processes", "16"),
            ("gpt2", "h100", "--nodes", "2", "--gpus", "8"),
        ),
        (("llama", "3.2", "1b", "instruct", "on", "h100"), ("llama-3.2-1b", "h100")),
        (("24GB", "is", "enough", "for", "gpt2"), ("gpt2", "24GB")),
    ],
)
def test_devices_and_models_are_named_in_any_order(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    given, wanted = job_of(*typed, *ONE), job_of(*meant, *ONE)
    assert (given["gpu"], given["parallel"]) == (wanted["gpu"], wanted["parallel"])
    assert given["model"]["parameters"] == wanted["model"]["parameters"]


@pytest.mark.parametrize(
    ("words", "solved"),
    [
        (("gpt2", "v100", "max", "batch", "size"), "micro_batch_size"),
        (("what batch size fits gpt2 on a v100",), "micro_batch_size"),
        (("longest", "context", "gpt2", "lora", "t4"), "sequence_length"),
    ],
)
def test_what_is_asked_for_is_solved(words: tuple[str, ...], solved: str) -> None:
    assert run("fit", *words, "--print", "solved.key").out.strip() == solved


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*TINY, "blorp"), "what is 'blorp'? (the model and the GPU are named already"),
        ((*TINY, "qlroa"), "did you mean qlora?"),
        ((*TINY, "gradient", "chekpointing"), "did you mean gradient-checkpointing"),
        ((*TINY, "inference"), "training only"),
        ((*TINY, "axolotl"), "vramplan fit axolotl.yaml"),
        ((*TINY, "deepspeed"), "or --zero 3 and --offload optimizer"),
        ((*TINY, "seq"), "a number belongs to it, as in --seq N"),
        ((*TINY, "224", "bs", "8"), "what is '224'?"),
        (("tinyllama", "4096", "h100"), "--seq 4096 is the length of a sequence"),
        ((*TINY, ""), "an empty word"),
        ((*TINY, "9" * 20), "what is '99999999999999999999'?"),
        ((*TINY, "lora", "full"), "is given twice"),
        (("OOM on tinyllama with h100",), "what is 'OOM'?"),
        (("fastest", "tinyllama", "h100"), "what is 'fastest'?"),
        ((*TINY, "trl", "sft", "quux"), "what is 'quux'?"),
        (("tinyllama", "lora", "rank", "16", "or", "32", "h100"), "what is 'or 32'?"),
        ((*TINY, "lora", "10000", "steps"), "the length of a run is"),
    ],
)
def test_a_word_that_is_not_understood_is_never_dropped(words: tuple[str, ...], said: str) -> None:
    assert said in refused("fit", *words).err


def test_a_part_that_is_frozen_beside_an_adapter_is_told_of() -> None:
    words = ("smolvlm-256m", "h100", "--lora", *ONE)
    ran = run("fit", *words, "--freeze-vision", "--print", "job")
    assert ran.document == job_of(*words)
    assert "--freeze-vision is left out: an adapter freezes the whole model" in ran.err
    assert "leave frozen out" in refused("fit", *words, "--freeze-llm").err


def test_how_words_are_read_is_said() -> None:
    told = run("fit", *TINY, "bs", "2", "4k tokens", "lora").err
    assert told == "note: 'bs 2' is read as --micro-batch 2, '4k tokens' as --seq 4k\n"
    assert run("fit", *TINY, "lora").err == ""
    assert run("fit", *TINY, "bs", "2", "--quiet").err == ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lama-3.1-8b", "llama-3.1-8b"),
        ("llama31-8b", "llama-3.1-8b"),
        ("qwen2p5-7b", "qwen2.5-7b"),
        ("qwen25-7b", "qwen2.5-7b"),
    ],
)
def test_a_name_that_can_only_be_one_is_taken_and_said(typed: str, meant: str) -> None:
    assert near("models", typed) == meant
    assert f"there is no model {typed!r}, which is read as {meant}" in run("fit", typed, "h100", "--qlora").err


def test_no_digit_is_corrected() -> None:
    for name in ("qwen2-57b", "qwen4-8b", "gpt2-xll3", "facebook/opt-351m", "albert-base-v3"):
        assert near("models", name) is None, name
    for name in ("rtx-4900", "v10", "rtx-4090m", "4090-24gb"):
        assert near("gpus", name) is None, name
    assert near("gpus", "rxt4090") == "rtx-4090"
    assert of_words("gpus", ("laptop", "4080")) == "rtx-4080-laptop"
    assert of_words("gpus", ("pro", "6000", "max")) is None


def test_every_shortcut_without_a_value_is_a_word_too() -> None:
    flags = [one.flags[0] for one in SHORTCUTS if one.means and not one.metavar and one.panel != "Output"]
    for flag in flags:
        words = flag.removeprefix("--").split("-")
        assert "what is" not in run("fit", "gpt2", "2xh100", *words, "--micro-batch", "1").err, flag


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("lora", "4", "gpus"), ("--lora", "--gpus", "4")),
        (("lora", "4", "gpus", "1024"), ("--lora", "--gpus", "4", "--seq", "1024")),
        (("lora", "16", "seq", "1024"), ("--lora", "--rank", "16", "--seq", "1024")),
        (("lora", "only"), ("--lora",)),
        (("lora", "lr", "2e-4"), ("--lora",)),
        (("no", "offload"), ("--offload", "none")),
        (("8卡",), ("--gpus", "8")),
        (("双卡", "lora"), ("--gpus", "2", "--lora")),
    ],
)
def test_a_number_behind_lora_is_of_what_follows_it(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert job_of(*TINY, *typed, *ONE) == job_of(*TINY, *meant, *ONE)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("tinyllama/h100",), TINY),
        (("tinyllama", "4张3090"), ("tinyllama", "4x3090")),
        (("tinyllama", "8块", "h100"), ("tinyllama", "8xh100")),
        (("tinyllama", "a100x2卡"), ("tinyllama", "2xa100")),
    ],
)
def test_two_words_in_one_are_read_apart(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    assert job_of(*typed, *ONE) == job_of(*meant, *ONE)


def test_one_run_is_not_with_and_without_something() -> None:
    words = ("gpt2", "v100", "--micro-batch", "1")
    for said in ("with and without", "with or without"):
        assert f"what is {said!r}?" in refused("fit", *words, *said.split(), "checkpointing").err
    assert columns("compare", *words, "with", "and", "without", "gradient", "checkpointing") == {
        "checkpointing": ["none", "full"]
    }


def columns(*words: str) -> dict[str, list[str]]:
    """What varies in a comparison, and its values."""
    found: dict[str, list[str]] = {}
    for cell in run(*words, "--format", "json").document["cells"]:
        for option, value in cell["options"].items():
            found.setdefault(option, [])
            found[option] += [] if value in found[option] else [value]
    return found


@pytest.mark.parametrize(
    ("words", "varied"),
    [
        ("compare gpt2 t4 seq 128,256", {"seq": ["128", "256"]}),
        ("compare tinyllama h100 lora 1k,2k", {"seq": ["1k", "2k"]}),
        ("compare gpt2 a100 40gb, h100 lora", {"gpu": ["a100 40gb", "h100"]}),
        ("compare gpt2 a100 40gb,h100 lora", {"gpu": ["a100 40gb", "h100"]}),
        ("scale gpt2 h100 1,2,4", {"gpus": ["1", "2", "4"]}),
        ("scale gpt2 h100 lora 1 2", {"gpus": ["1", "2"]}),
        ("scale gpt2 h100 from 1 to 2", {"gpus": ["1", "2"]}),
        ("scale gpt2 h100 max 2 gpus", {"gpus": ["1", "2"]}),
    ],
)
def test_lists_are_words_too(words: str, varied: dict[str, list[str]]) -> None:
    assert columns(*words.split(), "--micro-batch", "1") == varied


def test_a_list_of_gpus_in_quotes_is_not_taken_apart() -> None:
    ran = run("compare", "gpt2", "a100 40gb,h100", "--micro-batch", "1")
    assert "fastest: --gpu h100" in ran.out
    assert "--gpu 'a100 40gb'," in ran.out  # as a shell takes it


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("plan gpt2 t4 exclude offload", ("--exclude", "offload")),
        ("timeline gpt2 t4 peak", ()),
        ("checkpoints gpt2 t4 budget 4 GiB", ("--budget", "4 GiB")),
        ("explain gpt2 t4 tensor ln_f.weight", ("--tensor", "ln_f.weight")),
    ],
)
def test_options_of_one_command_are_words_of_it(words: str, options: tuple[str, ...]) -> None:
    command, model, gpu, *said = words.split()
    spoken, typed = run(command, model, gpu, *said, *ONE), run(command, model, gpu, *options, *ONE)
    assert (spoken.code, spoken.out) == (typed.code, typed.out)
    assert spoken.out


def test_words_that_may_name_a_fine_tune_are_one() -> None:
    err = refused("fit", "nous", "hermes", "2", "mistral", "7b", "dpo", "h100").err
    assert "the name of a fine-tune is one word, as in nous-hermes-2-mistral-7b-dpo" in err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("two", "24gb", "cards"), ("--gpu", "2x24gb")),
        (("2", "24", "GB", "gpus"), ("--gpu", "2x24 GB")),
        (("8", "x", "40GB", "A100s"), ("--gpu", "8xa100-40gb")),
        (("8x", "80GB", "A100"), ("--gpu", "8xa100-80gb")),
        (("2x", "4x", "a100-40gb"), ("--gpu", "4xa100-40gb", "--nodes", "2")),
        (("2", "nodes", "x", "8", "h100"), ("--gpu", "8xh100", "--nodes", "2")),
        (("单机8卡", "h100"), ("--gpu", "8xh100")),
        (("两机16卡", "h100"), ("--gpu", "8xh100", "--nodes", "2")),
        (("2枚", "3090"), ("--gpu", "2x3090")),
        (("auf", "2", "RTX", "4090"), ("--gpu", "2xrtx-4090")),
        (("12", "gig"), ("--gpu", "12 GB")),
        (("20", "GiB", "budget"), ("--gpu", "20 GiB")),
    ],
)
def test_devices_are_counted_as_people_say_it(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    ran, other = (
        run("fit", "tinyllama", *words, *ONE, "--print", "job.parallel,job.gpu.memory,verdict")
        for words in (typed, meant)
    )
    assert ran.code in (0, 3), ran
    assert ran.out == other.out


def test_two_models_lead_to_compare() -> None:
    assert "compare -m tinyllama,gpt2" in refused("fit", "tinyllama", "vs", "gpt2", "h100").err


@pytest.mark.parametrize("word", ["foo", "dos", "1/2"])
def test_a_word_before_the_gpu_is_named_and_not_the_gpu(word: str) -> None:
    assert f"what is '{word}'?" in refused("fit", "tinyllama", word, "3090").err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("checkpointing none full", ("--checkpointing", "none,full")),
        ("lora rank 4 8 or 16", ("--lora", "--rank", "4,8,16")),
        ("fsdp 2xa100 zero 2 or 3", ("--gpu", "2xa100", "--sharding", "fsdp,zero2,zero3")),
        ("micro batch 1 2 a100", ("--micro-batch", "1,2", "--gpu", "a100")),
        ("2xa100 fsdp batch 4 seq 1k", ("--gpu", "2xa100", "--fsdp", "--micro-batch", "4", "--seq", "1k")),
    ],
)
def test_values_behind_one_another_are_a_list_where_runs_are_compared(words: str, meant: tuple[str, ...]) -> None:
    gpu = () if "a100" in words else ("--gpu", "h100")
    other = () if "--gpu" in meant else ("--gpu", "h100")
    assert (
        run("compare", "tinyllama", *words.split(), *gpu, "--json").out
        == run("compare", "tinyllama", *meant, *other, "--json").out
    )


@pytest.mark.parametrize("words", ["from 2 to 8", "from 2 up to 8", "between 2 and 8 gpus", "2x 4x 8x", "2 4 8"])
def test_numbers_of_gpus_have_a_first_and_a_last(words: str) -> None:
    listed = run("scale", "tinyllama", "h100", "--gpus", "2,4,8", "--json")
    assert run("scale", "tinyllama", "h100", *words.split(), "--json").out == listed.out


@pytest.mark.parametrize(
    ("typed", "meant", "told"),
    [
        (("bs", "8", "--micro-batch", "1"), ("--micro-batch", "1"), "--micro-batch 1 replaces --micro-batch 8"),
        (("lora", "2k", "--seq", "1k"), ("--lora", "--seq", "1k"), "--seq 1k replaces --seq 2k"),
    ],
)
def test_an_option_behind_words_replaces_what_they_say(
    typed: tuple[str, ...], meant: tuple[str, ...], told: str
) -> None:
    one = () if "--micro-batch" in meant else ONE
    assert job_of(*TINY, *typed, *one) == job_of(*TINY, *meant, *one)
    assert told in run("fit", *TINY, *typed, *one).err


def test_the_gpu_of_a_remedy_replaces_the_one_of_the_words_and_no_word_an_option() -> None:
    assert job_of("tinyllama", "v100", "--gpu", "h100", *ONE) == job_of(*TINY, *ONE)
    assert "is given twice" in refused("fit", *TINY, "--micro-batch", "1", "bs", "8").err
