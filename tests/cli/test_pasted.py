"""A command of a training program among the words of a command line is read as its script would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import Ran, run

pytestmark = [pytest.mark.contract, pytest.mark.plain]

SWIFT = "CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-0.5B --train_type lora --max_length 256"
TRL = "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 256 --per_device_train_batch_size 2"
TORCHRUN = (
    *("torchrun", "--nproc_per_node=2", "train.py", "--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--bf16", "True"),
    *("--fsdp", "full_shard auto_wrap", "--per_device_train_batch_size", "1", "--model_max_length", "256"),
)
JOB = ("--print", "job")


def asked(*words: str, stdin: str = "") -> Ran:
    return run("fit", *words, *JOB, stdin=stdin) if stdin else run("fit", *JOB, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("h100", "--", *TRL.split()),
        ("-g", "h100", TRL),
        (TRL, "h100"),
        ("h100", *TRL.split()),
        (*TRL.split(), "-g", "h100"),
    ],
)
def test_a_pasted_command_is_the_same_as_its_script(words: tuple[str, ...]) -> None:
    ran = asked(*words)
    piped = asked("-", "h100", stdin=f"{TRL}\n")
    assert (ran.code, ran.out) == (piped.code, piped.out) == (0, ran.out)
    assert "the pasted command is read as trl" in ran.err


def test_options_of_ours_before_and_a_gpu_behind() -> None:
    ran = run(
        "fit", "--print", "job.gpu,job.micro_batch_size", "--micro-batch", "1", "axolotl", "train", "no.yaml", "t4"
    )
    assert ran.code == 2
    assert "no.yaml is not here" in ran.err
    assert "--gpu" not in ran.err  # the last word is it
    ran = run("fit", "--print", "job.micro_batch_size", TRL, "h100", "--micro-batch", "1")
    assert ran.out == "1\n"


def test_quoted_words_of_a_pasted_command_stay_together() -> None:
    ran = run("fit", "--print", "job.parallel.sharding,job.parallel.data", "2xa100", "OMP_NUM_THREADS=8", *TORCHRUN)
    assert ran.out == "fsdp\n2\n"


def test_a_value_of_the_command_is_no_gpu() -> None:
    ran = run("fit", *TRL.split(), "--seed", "4090")
    assert ran.code == 2
    assert "--gpu: is missing" in ran.err


@pytest.mark.parametrize(
    "text", [SWIFT, "tune run full_finetune_distributed --config llama3/8B", "litgpt pretrain a/b"]
)
def test_commands_of_every_program_are_commands_on_standard_input(text: str) -> None:
    ran = run("read", "-", stdin=f"{text}\n")
    assert "expected keys and values" not in ran.err
    assert "not Python" not in ran.err


def test_read_takes_a_pasted_command(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{SWIFT}\n")
    ran = run("read", SWIFT, "--print", "job.adapter.kind,job.sequence_length")
    assert ran.out == "lora\n256\n"
    assert run("read", str(script), "--print", "job.adapter.kind,job.sequence_length").out == ran.out


def test_what_is_left_open_is_given_by_one_line(tmp_path: Path) -> None:
    command = "deepspeed --num_gpus 2 train.py --model_name_or_path google-bert/bert-base-uncased --fp16 --use_peft"
    ran = run("fit", "v100", command, "--gpus", "2")
    assert "(--rank 16)" in ran.err
    script = tmp_path / "train.sh"
    script.write_text(f"{command}\n")  # BERT has positions for 512 tokens, and a gate assumes nothing
    assert "all of them: --seq 512 --rank 16" in run("check", str(script), "--gpu", "v100").err


def test_a_length_that_no_file_says_is_assumed_and_said() -> None:
    command = "torchrun --nproc_per_node 2 train.py --model_name_or_path google-bert/bert-base-uncased --fp16"
    ran = run("fit", "v100", command, "--micro-batch", "1")
    assert "left open (the script's, or the data's): 512 tokens are assumed (--seq N)" in ran.err
    assert (ran.code, "512 tokens" in ran.out) == (0, True)
    assert "leaves sequence_length open" in run("fit", "v100", f"{command} --max_length $LONG").err
    assert "assumed (--seq" not in run("fit", "v100", command, "--micro-batch", "1", "--seq", "128").err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (
            "tune run lora_finetune_single_device --config llama3_2/3B_lora batch_size=4",
            "tune cp llama3_2/3B_lora own.yaml",
        ),
        ("tune run lora_finetune_single_device --config my/3B_lora.yaml", "give that file beside it"),
        ("axolotl train https://x.org/lora-1b.yml", "curl -LO https://x.org/lora-1b.yml"),
    ],
)
def test_a_file_that_is_not_here_is_named_with_how_to_get_it(command: str, hint: str) -> None:
    assert hint in run("fit", "h100", "--", *command.split()).err


def test_the_name_of_a_launcher_alone_starts_nothing() -> None:
    assert "or --zero 3 and --offload optimizer" in run("fit", "gpt2", "v100", "deepspeed", "--zero", "3").err
    assert "the pasted command" in run("fit", "v100", "deepspeed", "--num_gpus", "1", "train.py", "--bf16").err


def test_a_script_of_unknown_arguments_leads_to_the_options_that_say_the_same() -> None:
    said = run("fit", "t4", "--", "python", "finetune.py", "--base_model", "gpt2", "--own_batch", "4").err
    assert "say what it runs: vramplan fit MODEL GPU --seq N --micro-batch N" in said


def test_a_script_behind_variables_is_a_command() -> None:
    assert "the pasted command" in run("fit", "h100", "NGPU=8", "./run_train.sh").err
