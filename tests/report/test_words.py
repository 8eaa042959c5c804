"""The words of the field, and none of our own, in what people read: answers for people, and the help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.running import run
from vramplan.cli.commands import COMMANDS

pytestmark = pytest.mark.contract

OURS = {
    r"\bladders?\b": "the strategies, compared",
    r"\brungs?\b": "a strategy",
    r"\bbands?\b": "range",
    r"device figure": "the figure of the GPU",
    r"device GiB": "GPU GiB",
    r"\bremed(y|ies)\b": "what would make it fit",
    r"[x×] \d+ steps?\b": "accumulation steps",
    r"\branks\b": "GPUs",
    r"exit code speaks": "report through the exit code",
    r"counts as able": "assumed yes",
    r"^ *\d+\.\d\d GiB still fit": "budget",
}
"""Words that a PyTorch user would not search for, and what is said instead."""

GPT2 = ("-m", "gpt2", "-g", "v100")
XL = ("-m", "gpt2-xl", "-g", "v100")
COMMAND_LINES = (
    ("fit", *XL),
    ("fit", *XL, "--details"),
    ("fit", *XL, "--format", "markdown"),
    ("fit", *XL, "--micro-batch", "64", "--checkpointing", "none"),
    ("fit", *XL, "--micro-batch", "64", "--checkpointing", "none", "--details"),
    ("fit", *XL, "--gpus", "4", "--sharding", "fsdp", "--base-batch-size", "64", "--base-lr", "1e-4", "--details"),
    ("fit", "-m", "llama-3.1-8b", "-g", "a100-80gb", "--gpus", "8", "--sharding", "fsdp", "--seq", "2048", "--details"),
    ("fit", *GPT2, "--allocator", "simulate", "--details"),
    ("fit", *GPT2, "--compile", "--details"),
    ("fit", "-m", "gpt2", "-g", "24 GiB", "--details"),
    ("explain", *GPT2, "--checkpointing", "none"),
    ("timeline", *GPT2),
    ("timeline", *GPT2, "--svg", "-"),
    ("checkpoints", *GPT2, "--micro-batch", "8"),
    ("walkthrough",),
    ("walkthrough", "--details"),
    ("walkthrough", "--gpus", "8", "--details", "--format", "markdown"),
    ("runtimes",),
)


def check_words(text: str) -> None:
    found = {ours: said for ours, said in OURS.items() if re.search(ours, text, re.IGNORECASE | re.MULTILINE)}
    assert not found, text


@pytest.mark.sweep(8)
@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_an_answer_has_the_words_of_the_field(words: tuple[str, ...]) -> None:
    ran = run(*words)
    assert ran.code in (0, 3), ran
    check_words(ran.out)


def test_gates_have_the_words_of_the_field(tmp_path: Path) -> None:
    sizes = {"tight": "27.9 GiB", "no": "10 GiB", "yes": "80 GiB"}
    jobs = [
        {
            "name": name,
            "model": "gpt2-xl",
            "gpu": {"name": name, "memory": size},
            "precision": "amp-fp16",
            "micro_batch_size": 1,
            "activation_checkpointing": "full",
        }
        for name, size in sizes.items()
    ]
    path = tmp_path / "jobs.yaml"
    path.write_text(json.dumps({"version": 1, "jobs": jobs}), "utf-8")
    for form in ("text", "markdown", "github", "junit"):
        check_words(run("check", path, "--format", form).out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_the_words_of_the_field(command: str) -> None:
    # `--remedies` is the name of an option, until it has another
    check_words(run(*command.split(), "--help").out.replace("--remedies", ""))
