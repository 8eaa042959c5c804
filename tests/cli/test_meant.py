"""What is nearly right is answered with the word that is meant: a key, an option, a command, a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import refused, run
from vramplan.catalog.hub import of_address
from vramplan.job.counts import parameter_count

pytestmark = [pytest.mark.contract, pytest.mark.plain]

JOBS = "version: 1\njobs:\n- {name: a, model: gpt2, gpu: v100, micro_batch_size: 1}\n"
JOBS += "- {name: b, model: gpt2-medium, gpu: v100, micro_batch_size: 1}\n"


def jobs(folder: Path, text: str) -> str:
    path = folder / "jobs.yaml"
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize("command", ["fit", "explain", "checkpoints"])
def test_a_job_is_named_beside_its_file_as_check_takes_it(command: str, tmp_path: Path) -> None:
    path = jobs(tmp_path, JOBS)
    named = run(command, f"{path}#b")
    assert named.code == 0
    assert run(command, path, "--job", "b") == run(command, "--job", "b", path) == named
    assert "has no job 'c'" in refused(command, path, "--job", "c").err
    assert "is given twice" in refused(command, f"{path}#a", "--job", "b").err


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("gpu: [t4, v100]", "matrix: {gpu: [...]} makes a job of each value"),
        ("gpu: v100, lora: true", "did you mean adapter: {kind: lora, rank: 16}?"),
        ("gpu: v100, qlora: true", "did you mean adapter: {kind: qlora, rank: 16}?"),
        ("gpu: v100, bf16: true", "did you mean precision: bf16?"),
        ("gpu: v100, fsdp: true", "did you mean parallel: {sharding: fsdp}?"),
    ],
)
def test_a_key_of_a_job_file_names_what_is_meant(wrong: str, right: str, tmp_path: Path) -> None:
    path = jobs(tmp_path, f"version: 1\njobs:\n- {{name: a, model: gpt2, {wrong}}}\n")
    assert right in refused("check", path).err


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("fit", "gpt2", "-g", "v100", "-o", "json"), "--format json"),
        (("fit", "gpt2", "-g", "v100", "--output", "out.json"), "> FILE"),
        (("fit", "gpt2", "-g", "v100", "--task", "translation"), "the task belongs to the model"),
        (("fit", "gpt2", "-g", "v100", "--cost"), "--tokens, --samples or --epochs"),
        (("fit", "gpt2", "-g", "v100", "--days", "3"), "--deadline 3d is a limit"),
        (("fit", "gpt2", "-g", "v100", "--full", "--lora"), "as --full and as --lora"),
        (("fit", "gpt2", "-g", "v100", "--lora", "16", "--rank", "8"), "as --lora 16 and as --rank 8"),
        (("fit", "gpt2", "-g", "v100", "--full", "--rank", "16"), "and with --full there is none"),
        (("fit", "gpt2", "-g", "v100", "--adapter", "full", "--4bit"), "and with --adapter full there is none"),
        (("fit", "gpt2", "-g", "v100", "--method", "lora"), "--lora, --qlora or --full"),
        (("fit", "gpt2", "-g", "v100", "--max-steps", "100"), "the length of a run is --tokens"),
        (("fit", "gpt2", "-g", "v100", "-n", "8"), "--gpus N"),
        (("fit", "gpt2", "-g", "v100", "--margin", "2GB"), "--reserve SIZE"),
        (("fit", "gpt2", "-g", "v100", "--fail-on", "tight"), "(--strict)"),
        (("timeline", "gpt2", "-g", "v100", "--png", "x.png"), "--svg FILE"),
        (("fit", "gpt2", "-g", "v100", "--axolotl"), "vramplan fit axolotl.yaml"),
        (("runtimes", "axolotl"), "vramplan fit axolotl.yaml"),
        (("fit", "gpt2", "-g", "v100", "--vocab-size", "32000"), "the sizes of a model belong to it"),
        (("fit", "gpt2", "-g", "v100", "--export", "trl"), "--emit PROGRAM"),
        (("fit", "gpt2", "-g", "v100", "--weights", "bf16"), "--weight-dtype T"),
        (("fit", "gpt2", "-g", "v100", "--max-time", "3d"), "--deadline 3d"),
        (("fit", "gpt2", "-g", "v100", "--largest-model"), "vramplan compare -m A,B,C -g GPU"),
        (("fit", "gpt2", "-g", "v100", "--no-color"), "NO_COLOR=1"),
        (("fit", "gpt2", "-g", "v100", "--use-cpu"), "No such option"),
        (("fit", "gpt2", "-g", "v100", "--seq", "--lora"), "'--seq' requires an argument"),
        (("check", "jobs.yaml", "--lr", "1e-4"), "No such option: --lr"),
        (("fit", "gpt2", "-g", "v100", "--no-flash"), "--attention efficient"),
        (("fit", "gpt2", "-g", "v100", "--within", "5"), "vramplan plan has it"),
        (("compare", "gpt2", "-g", "v100", "--emit", "trl"), "vramplan fit, checkpoints and plan have it"),
        (("check", "jobs.yaml", "--junit"), "--format junit > OUT.xml"),
        (("fit", "gpt2", "-g", "cuda:0"), "--gpu local"),
        (("fit", "gpt2", "-g", "-5 GiB"), "a size is digits and a unit"),
        (("fit", "gpt2", "-g", "t4,v100"), "`vramplan compare` takes a list"),
        (("fit", "gpt2", "RTX 9999"), "did you mean rtx-5090"),
        (("fit", "gpt2"), "`vramplan compare -g all` looks for the cheapest that fits"),
        (("fit", "gpt2", "-g", "8xv100", "--fsdp", "--zero", "3"), "as --fsdp and as --zero 3"),
        (("timeline", "gpt2", "-g", "v100", "--json"), "--format json prints it"),
        (("plan", "gpt2", "-g", "v100", "--svg", "x.png"), "name it x.svg"),
        (("compare", "gpt2", "t4,v100", "--svg", "no/x.svg"), "cannot write 'no/x.svg'"),
        (("fit", "--params", "7B", "-g", "v100"), "--model 7B --runtime textbook"),
        (("help", "fti"), "vramplan fit --help"),
        (("version",), "--version prints it"),
        (("list", "gpus"), "did you mean gpus?"),
        (("list", "models"), "did you mean models?"),
        (("list",), "did you mean models?"),
        (("qwen3-8b", "4090"), "did you mean vramplan fit -m qwen3-8b -g 4090?"),
        (("qwen3-8b",), "did you mean vramplan fit -m qwen3-8b -g GPU?"),
        (("how", "many", "GPUs", "for", "gpt2-xl"), "--gpus auto"),
        (("longest sequence of gpt2 on a t4",), "--max sequence"),
        (("which", "model", "fits", "on", "24", "GB"), "vramplan compare -m A,B,C -g G"),
        (("can", "I", "train", "gpt2"), "`vramplan fit -m M -g G`"),
        (("optimize", "gpt2", "t4"), "did you mean plan?"),
        (("cost", "gpt2"), "--tokens N"),
        (("show", "h100"), "did you mean vramplan gpus h100?"),
        (("info", "gpt2"), "did you mean vramplan models gpt2?"),
        (("-m", "gpt2", "-g", "rtx 3090"), "vramplan fit -m gpt2 -g 'rtx 3090'"),
        (("--lora", "explain", "gpt2", "t4"), "vramplan explain --lora gpt2 t4"),
        (("-V",), "--version prints it"),
        (("--quux",), "No such option: --quux (see vramplan --help)"),
    ],
)
def test_an_option_or_a_command_names_what_is_meant(words: tuple[str, ...], right: str) -> None:
    assert right in refused(*words).err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("--dpo",), ("--loss", "dpo")),
        (("--adafactor",), ("--optimizer", "adafactor")),
        (("--8bit-adam",), ("--optimizer", "adamw-8bit")),
        (("--int8", "--lora"), ("--quantization", "int8", "--lora")),
        (("--int4", "--lora"), ("--quantization", "nf4", "--lora")),
        (("--use-unsloth", "--lora"), ("--runtime", "unsloth", "--lora")),
        (("--tf32",), ("--precision", "tf32")),
        (("--full",), ("--adapter", "none")),
        (("--full-finetune",), ("--adapter", "none")),
        (("--sdpa",), ("--attention", "sdpa")),
        (("--eager",), ("--attention", "eager")),
    ],
)
def test_a_value_as_an_option_is_read_and_said(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    words = ("fit", "llama-3.2-1b", "-g", "h100", "--micro-batch", "1", "--print", "job,peak")
    found = run(*words, *typed)
    assert found.err == f"note: {typed[0]} is read as {meant[0]} {meant[1]}\n"
    assert found.out == run(*words, *meant).out
    assert run(*words[:-2], "--quiet", *typed).err == ""


def test_a_list_or_a_size_stands_behind_a_model() -> None:
    words = ("--seq", "128", "--print", "cells")
    assert run("compare", "gpt2", "t4,v100", *words).out == run("compare", "gpt2", "-g", "t4,v100", *words).out
    assert run("fit", "gpt2", "24 GiB", "--print", "name").out == "gpt2 on 24 GiB\n"


@pytest.mark.parametrize("model", ["facebook/sam-vit-huge", "facebook/detr-resnet-50", "facebook/maskgit-large"])
def test_a_model_of_another_kind_is_not_near_for_its_organisation_and_size(model: str) -> None:
    told = refused("fit", model, "-g", "v100").err
    assert "did you mean" not in told
    assert ("vramplan models lists what is modelled" if "maskgit" in model else "detectors and segmenters") in told


@pytest.mark.parametrize(
    ("model", "meant"),
    [("facebook/opt-351m", "facebook/opt-350m"), ("meta-lama/lama-3-8b", "llama-3-8b"), ("qwen/qwen4-8b", "qwen3-8b")],
)
def test_a_model_whose_own_name_is_near_is_named(model: str, meant: str) -> None:
    assert f"did you mean {meant} or" in refused("fit", model, "-g", "v100").err


@pytest.mark.parametrize("address", ["https://huggingface.co/Qwen/Qwen3-8B", "hf.co/Qwen/Qwen3-8B/tree/main"])
def test_the_address_of_a_model_is_its_repository(address: str) -> None:
    words = ("-g", "h100", "--seq", "128", "--micro-batch", "1", "--print", "job.model,peak.device_bytes")
    assert run("fit", address, *words) == run("fit", "Qwen/Qwen3-8B", *words)
    assert of_address("https://huggingface.co/Qwen/Qwen3-8B/blob/abc1/config.json") == "Qwen/Qwen3-8B@abc1"
    assert of_address("https://example.com/Qwen/Qwen3-8B") == "https://example.com/Qwen/Qwen3-8B"


@pytest.mark.parametrize("text", ["10_000_000", "10,000,000", "10000000", "10M", "10_000k", "1e7"])
def test_digits_are_grouped_as_people_do_it(text: str) -> None:
    assert parameter_count(text) == 10**7
    words = ("fit", "gpt2", "-g", "a100-80gb", "--micro-batch", "1", "--print", "run.tokens")
    assert run(*words, "--tokens", text).out.strip() == "10000384"  # the steps are rounded up


@pytest.mark.parametrize("text", ["1_0", "10,00", "1,000_0", "1__000", "_1", "1,"])
def test_other_commas_and_underscores_are_refused(text: str) -> None:
    assert parameter_count(text) is None
    told = refused("fit", "gpt2", "-g", "v100", "--tokens", text, "--deadline", "1h").err
    assert "no count of tokens" in told
    assert "deadline" not in told


def test_a_length_is_written_with_k_or_m() -> None:
    words = ("fit", "llama-3.1-8b", "-g", "h100", "--print", "job.sequence_length")
    assert run(*words, "--seq", "1M").out == run(*words, "--seq", "1024k").out == "1048576\n"
    assert run(*words, "--seq", "1_024").out == run(*words, "--seq", "1,024").out == "1024\n"
    budget = ("fit", "gpt2", "-g", "a100-80gb", "--tokens", "1M", "--print", "run.budget_usd", "--budget")
    assert run(*budget, "1_000").out == run(*budget, "1,000.00").out == "1000.0\n"


ONE = ("fit", "llama-3.2-1b", "-g", "h100", "--micro-batch", "1", "--print", "job,peak")


@pytest.mark.parametrize(
    ("typed", "meant", "told"),
    [
        (("--lora", "16"), ("--lora", "--rank", "16"), "--lora 16 is read as --lora --rank 16"),
        (("--qlora", "r=16"), ("--qlora", "--rank", "16"), "--qlora r=16 is read as --qlora --rank 16"),
        (("--lr", "2e-4"), (), "--lr 2e-4 changes neither memory nor the time of a step, and is left out"),
        (("--weight-decay=0.1",), (), "--weight-decay 0.1 changes neither memory"),
        (("--seed", "1", "--do_train", "--output_dir", "out"), (), "--seed 1, --do_train and --output_dir out change "),
        (("--push_to_hub", "False", "--lora"), ("--lora",), "--push_to_hub False changes neither"),
        (("--warmup-steps", "--lora"), ("--lora",), "--warmup-steps changes neither"),
        (("--sft", "--lora"), ("--lora",), "--sft is what is planned where no option says another"),
        (("--pretrain",), ("--from-scratch",), "--pretrain is read as --from-scratch, weights that are made"),
        (("--steps", "1000"), ("--gradient-accumulation-steps", "1000"), "the length of a run is --tokens"),
    ],
)
def test_what_is_read_or_left_out_is_said(typed: tuple[str, ...], meant: tuple[str, ...], told: str) -> None:
    found = run(*ONE, *typed)
    assert found.err.startswith("note: ")
    assert told in found.err
    assert found.err.count("\n") == 1
    assert (found.code, found.out) == (0, run(*ONE, *meant).out)
    assert run(*ONE[:-2], "--quiet", *typed).err == ""


def test_a_word_behind_a_switch_without_effect_is_the_model() -> None:
    assert run("fit", "--do_train", *ONE[1:]).out == run(*ONE).out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("--recompute", "--lora"), ("--checkpointing", "full", "--lora")),
        (("--lora", "--activation-checkpointing"), ("--checkpointing", "full", "--lora")),
        (("--remat",), ("--checkpointing", "full")),
        (("--fa2", "--bfloat16"), ("--attention", "flash", "--precision", "bf16")),
        (("--checkpointing", "auto", "--gas", "auto", "--global-batch", "auto"), ()),
        (("--finetuning_type", "full"), ()),
        (("--finetuning_type", "lora", "--lora_target", "all"), ("--lora", "--targets", "all-linear")),
        (("--use_lora", "--use_4bit"), ("--lora", "--quantization", "4bit")),
        (("--lora", "--bits", "4"), ("--lora", "--quantization", "4bit")),
        (("--lora", "--quantization_bit", "8"), ("--lora", "--quantization", "int8")),
        (("--max-seq", "512"), ("--seq", "512")),
        (("--sample_packing",), ("--packing",)),
        (("--steps", "16"), ("--gradient-accumulation-steps", "16")),
    ],
)
def test_what_programs_call_it_is_taken(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    found = run(*ONE, *typed)
    assert (found.code, found.err, found.out) == (0, "", run(*ONE, *meant).out)


def test_a_batch_that_is_auto_is_chosen() -> None:
    words = ("fit", "gpt2", "-g", "v100", "--seq", "128", "--print", "recommended")
    assert run(*words, "--micro-batch", "auto").out == run(*words).out
    assert "expected a whole number" in refused("fit", "gpt2", "-g", "v100", "--seq", "auto").err


@pytest.mark.parametrize("word", ["ctx", "context", "length", "seq-len"])
def test_the_largest_may_be_asked_for_in_several_words(word: str) -> None:
    words = ("fit", "gpt2", "-g", "t4", "--lora", "--print", "solved")
    assert run(*words, "--max", word).out == run(*words, "--max", "sequence").out


def test_a_key_may_begin_with_a_dot_as_jq_has_it() -> None:
    words = ("fit", "gpt2", "v100", "--seq", "64", "--print")
    assert run(*words, ".verdict,.peak.device_bytes").out == run(*words, "verdict,peak.device_bytes").out


def test_formats_have_short_names() -> None:
    for short, whole in (("md", "markdown"), ("yml", "yaml"), ("table", "text")):
        assert run("gpus", "--format", short) == run("gpus", "--format", whole)
    assert run("fit", "nosuch", "t4", "--format", "yml").out == run("fit", "nosuch", "t4", "--format", "yaml").out != ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("gpt2", "t4", "v100"), ("gpt2", "-g", "t4,v100")),
        (("gpt2", "8xall", "--seq", "64"), ("gpt2", "-g", "8xall", "--seq", "64")),
        (("gpt2", "-g", "t4", "--gpu", "v100"), ("gpt2", "-g", "t4,v100")),
        (("gpt2", "gpt2-medium", "t4"), ("-m", "gpt2,gpt2-medium", "-g", "t4")),
        (("gpt2", "t4", "--seq", "64", "--seq", "128"), ("gpt2", "t4", "--seq", "64,128")),
        (("gpt2", "t4", "--lora", "--qlora"), ("gpt2", "t4", "--adapter", "lora,qlora")),
        (
            ("gpt2", "t4", "--checkpointing", "none", "--checkpointing", "layers:[[0,6],[7,11]]"),
            ("gpt2", "t4", "--checkpointing", "none;layers:[[0,6],[7,11]]"),
        ),
    ],
)
def test_what_is_compared_may_be_given_one_by_one(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    words = ("--micro-batch", "1", "--print", "axes,cells")
    found = run("compare", *typed, *words)
    assert (found.code, found.out) == (0, run("compare", *meant, *words).out)


def test_what_compare_takes_once_is_refused_twice() -> None:
    assert "is given twice" in refused("compare", "gpt2", "t4,v100", "--format", "json", "--format", "csv").err
    assert "is given twice" in refused("compare", "gpt2", "t4,v100", "--ema", "--no-ema").err


def test_what_qlora_leaves_open_is_told_of_the_quantization() -> None:
    words = ("fit", "gpt2", "t4", "--micro-batch", "1", "--seq", "64", "--qlora", "--print", "assumptions")
    assert '{"key":"quantization","value":"nf4","why":"qlora: QLoRA' in run(*words).out
    assert "with double quantization" not in run(*words, "--quantization", "nf4-double").out


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("fit", "gpt2", "t4", "--fail-if", "tight"), "4 with --strict"),
        (("check", "jobs.yaml", "--max-utilization", "90%"), "--reserve"),
        (("fit", "gpt2", "t4", "--why"), "`vramplan explain` with the same options"),
        (("fit", "gpt2", "t4", "--max-gpus", "8"), "`vramplan scale -m M -g G --to 64`"),
        (("fit", "qwen2.5-1.5b", "t4", "--grpo", "--max-completion-length", "1024"), "a prompt with its completion"),
        (("fit", "qwen2.5-vl-7b", "l4", "--max-pixels", "1003520"), "--image-size N"),
        (("explain", "gpt2", "t4", "--what", "logits"), "--tensor NAME"),
        (("fit", "bge-m3", "l4", "--loss", "contrastive"), "a pair of texts counts as two"),
        (("fit", "vit-large", "t4", "--image-size", "384"), "a model made for 384 pixels"),
        (("fit", "gpt2", "dgx-a100", "--fsdp"), "did you mean 8xa100?"),
        (("checkpoints", "gpt2", "t4", "--lora"), "vramplan compare --checkpointing none,full"),
        (("completion", "zsh"), "--install-completion"),
        (("largest-model", "--gpu", "t4"), "vramplan compare -m A,B,C -g G"),
        (("llama3", "4090", "--qlora"), "did you mean vramplan fit llama3 4090 --qlora?"),
        (("compare", "gpt2", "t4", "1,2,4"), "--gpus 1,2,4"),
        (("explain", "gpt2", "t4", "--layer", "0"), "(--block N)"),
        (("timeline", "gpt2", "t4", "-o", "out.svg"), "--svg FILE draws"),
        (("fit", "gpt2", "h100", "--torchao"), "--optimizer adamw-8bit-torchao"),
        (("fit", "yolov8", "t4"), "detectors and segmenters are not modelled"),
        (("fit", "gpt2", "t4", "--neftune", "5"), "NEFTune adds noise"),
        (("runtimes", "show", "trl"), "did you mean transformers?"),
        (("fit", "7b qlora", "t4"), "7b is a number of parameters"),
        (("my-org/my-llama", "t4"), "did you mean vramplan fit my-org/my-llama t4?"),
    ],
)
def test_what_people_wish_for_leads_somewhere(words: tuple[str, ...], right: str) -> None:
    ran = run(*words)
    assert (ran.code, ran.out, ran.err.count("error:")) == (2, "", 1)
    assert right in ran.err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("-m", "gpt2", "-g", "4090", "x2"), ("-m", "gpt2", "-g", "2x4090")),
        (("gpt2", "4090 x 2"), ("gpt2", "2x4090")),
        (("gpt2", "Kaggle T4 x2"), ("gpt2", "2xt4")),
        (("gpt2", "colab-t4", "--csv"), ("gpt2", "t4", "--format", "csv")),
        (("gpt2", "t4", "--md"), ("gpt2", "t4", "--format", "markdown")),
        (
            ("flan-t5-small", "t4", "--src-len", "64", "--tgt-len", "16"),
            ("flan-t5-small", "t4", "--seq", "64", "--target-length", "16"),
        ),
        (("gpt2", "t4", "--task", "seq_cls"), ("gpt2", "t4", "--loss", "classification")),
        (("roberta-base", "t4", "--task", "token-classification"), ("roberta-base", "t4", "--loss", "classification")),
        (("llama-3.2-1b", "a100", "--task", "reward"), ("llama-3.2-1b", "a100", "--loss", "reward")),
        (
            ("gpt2", "2xl4", "--deepspeed", "zero2_offload"),
            ("gpt2", "2xl4", "--zero", "2", "--offload", "optimizer,gradients"),
        ),
        (
            ("gpt2", "2xl4", "--sharding", "zero3+offload"),
            ("gpt2", "2xl4", "--zero", "3", "--offload", "parameters,gradients,optimizer"),
        ),
        (("gpt2", "t4", "--gpus", "?"), ("gpt2", "t4", "--gpus", "auto")),
    ],
)
def test_other_words_are_the_same_run(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    first, second = run("fit", *typed), run("fit", *meant)
    assert (first.code, first.out.partition("assumed")[0]) == (second.code, second.out.partition("assumed")[0])
    assert first.code == 0


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("gpus", "--vram", "100 GiB"), ("gpus", "--min-memory", "100 GiB")),
        (("gpus", "--arch=volta"), ("gpus", "--architecture", "volta")),
        (("models", "--size", "0.5b"), ("models", "--name", "0.5b")),
        (("models", "llama-4-scout"), ("models", "llama-4-scout-17b-16e")),
        (("models", "qwen3-30b"), ("models", "qwen3-30b-a3b")),
    ],
)
def test_other_words_are_the_same_list(typed: tuple[str, ...], meant: tuple[str, ...]) -> None:
    ran = run(*typed)
    assert (ran.code, ran.out) == (0, run(*meant).out)


def test_help_and_a_command_is_its_help() -> None:
    assert run("help", "scale").out == run("scale", "--help").out


def test_a_job_without_a_file_is_told_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: gpt2\ngpu: t4\n")
    assert "a job stands in a job file" in run("fit", str(path)).err


def test_as_many_prices_as_gpus_belong_to_them() -> None:
    rows = run("compare", "gpt2", "t4,l4", "--price", "0.5,0.8", "--tokens", "1M", "--format", "json").document["cells"]
    assert [(row["options"], float(row["usd_per_hour"])) for row in rows] == [
        ({"gpu": "t4"}, 0.5),
        ({"gpu": "l4"}, 0.8),
    ]
    four = run("compare", "gpt2", "t4,l4", "--price", "1,2,3", "--tokens", "1M", "--format", "json").document["cells"]
    assert len(four) == 6


def test_the_last_number_of_gpus_has_other_names() -> None:
    assert run("scale", "gpt2", "t4", "--max-gpus", "2").out == run("scale", "gpt2", "t4", "--to", "2").out
