"""Standard input in the place of a file: every command that takes files reads it, as often as it needs to."""

from __future__ import annotations

import pytest

from tests.cli.running import run
from vramplan.catalog.text import STDIN_NAMES
from vramplan.cli.typed import STDIN

AXOLOTL = "base_model: gpt2\nsequence_len: 128\nmicro_batch_size: 2\nbf16: true\ngradient_checkpointing: false\n"
MEGATRON = (
    "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 128 --num-attention-heads 2 --seq-length 64 "
    "--max-position-embeddings 64 --micro-batch-size 1 --bf16\n"
)
JOB = "version: 1\njobs:\n- {name: a, model: gpt2, gpu: t4, sequence_length: 128, micro_batch_size: 1}\n"
GPU = ("--gpu", "h100")
TAKE_CONFIGS = {
    "read": (),
    "fit": GPU,
    "check": GPU,
    "convert": ("--to", "trl"),
    "explain": GPU,
    "timeline": GPU,
    "checkpoints": GPU,
    "plan": (*GPU, "--exclude", "compile=true"),
}


@pytest.mark.parametrize("command", TAKE_CONFIGS)
def test_a_file_of_a_training_program(command: str) -> None:
    ran = run(command, "-", *TAKE_CONFIGS[command], stdin=AXOLOTL)
    assert ran.code == 0, ran.err
    assert "axolotl" in ran.out + ran.err


@pytest.mark.parametrize("command", ["read", "fit", "check", "timeline"])
def test_a_script(command: str) -> None:
    ran = run(command, "-", *TAKE_CONFIGS[command], stdin=MEGATRON)
    assert ran.code == 0, ran.err
    assert "megatron-lm" in ran.out + ran.err


@pytest.mark.parametrize("name", ["-", "/dev/stdin", "-#a"])
def test_a_job_file(name: str) -> None:
    assert run("fit", name, "--format", "json", stdin=JOB).document["job"]["gpu"]["name"] == "t4"


@pytest.mark.parametrize("words", [("-",), ("--config", "-"), ("/dev/stdin",)])
def test_the_answer_is_that_of_the_file(words: tuple[str, ...], tmp_path: pytest.TempPathFactory) -> None:
    file = tmp_path / "axolotl.yaml"  # type: ignore[operator]
    file.write_text(AXOLOTL)
    converted = run("convert", file, "--to", "llama-factory")
    assert run("convert", *words, "--to", "llama-factory", stdin=AXOLOTL).out == converted.out != ""


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (("convert", "-", "--to", "trl"), JOB, "convert takes no job file"),
        (("walkthrough", "-", *GPU), AXOLOTL, "walkthrough takes no file of a training program"),
        (("read", "-"), JOB, "is a job file of vramplan already"),
        (("fit", "-", *GPU), '{"model_type": "gpt2"}', "standard input has the shape of a model"),
        (("fit", "-", *GPU), "", "is empty"),
        (("check", "-"), "", "is empty"),
    ],
)
def test_what_a_command_does_not_take_is_said(words: tuple[str, ...], text: str, said: str) -> None:
    ran = run(*words, stdin=text)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_the_names_are_those_of_the_reader_of_files() -> None:
    assert set(STDIN) == STDIN_NAMES


def test_two_commands_of_one_process_read_each_their_own() -> None:
    for length in (64, 32):
        ran = run("read", "-", "--print", "job.sequence_length", stdin=AXOLOTL.replace("128", str(length)))
        assert ran.out == f"{length}\n"
