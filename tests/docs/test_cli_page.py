"""docs/cli.md is what the commands say, and every example in a command's help runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import Ran, run
from tests.docs.cli import DOCS, JOB, PAGE, ROOT, as_shell, commands, page
from tests.measure.readings import readings
from tests.measure.runners import Runner
from vramplan.catalog import smi
from vramplan.catalog.smi import LocalGpu
from vramplan.cli.commands import COMMANDS, build
from vramplan.measure import apart, calibration

EXAMPLES = [(name, line) for line, name in {line: one.name for one in commands() for line in one.examples}.items()]
BLOCK = re.compile(r"^```(?:yaml|bash)\n(# ([\w.-]+\.(?:ya?ml|sh))\n.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.docs.cli"


def test_every_command_is_a_section() -> None:
    sections = re.findall(r"^## (.*)$", page(), re.MULTILINE)
    assert sections == [*(command.name for command in commands()), "Options of a job", "Names of other programs"]
    assert {f"vramplan {name}" for name in COMMANDS} < set(sections)


def test_every_option_that_help_shows_is_on_the_page() -> None:
    text = page()
    for command in commands():
        section = text.split(f"## {command.name}\n")[1].split("\n## ")[0] + text.split("## Options of a job\n")[1]
        for parameter in command.built.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                for name in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"`{name}[ `]", section) or name in ("--help", "-h"), (command.name, name)


def test_every_command_has_examples() -> None:
    with_examples = {name.split()[1] for name, example in EXAMPLES if " " in name}
    assert with_examples == set(COMMANDS)


FILES_OF_PROGRAMS = {
    "axolotl.yaml": "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\nbf16: true\n",
    "accelerate.yaml": "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 2\n",
    "sft.yaml": "model_name_or_path: gpt2\nmax_length: 512\npacking: false\nper_device_train_batch_size: 2\n",
    "config.yaml": "model_name_or_path: gpt2\nmax_length: 512\npacking: true\nlearning_rate: 1e-4\n",
    "train_gpt3.sh": "torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 2 --hidden-size 64 "
    "--num-attention-heads 2 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 "
    "--global-batch-size 64 --bf16 --train-iters 9 --lr 1e-4\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a person has who tries the examples: the files that they name, profiles of their own, a GPU."""
    for source in (ROOT / "README.md", DOCS / "job-format.md", DOCS / "configs.md"):
        for text, name in BLOCK.findall(source.read_text("utf-8")):
            (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "baseline.json").write_text('{"schema_version": 1, "results": []}', "utf-8")
    for name, text in FILES_OF_PROGRAMS.items():
        (tmp_path / name).write_text(text, "utf-8")
    config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    card = (ROOT / "profiles" / "gpus" / "a100-80gb.yaml").read_text("utf-8")
    card = re.sub(r"^name: .*$", "name: my-card", card, count=1, flags=re.MULTILINE)
    card = re.sub(r"^aliases: .*\n", "", card, count=1, flags=re.MULTILINE)
    own = tmp_path / "config" / "vramplan" / "profiles" / "gpus"
    for place in (tmp_path, tmp_path / "profiles" / "gpus"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "my-card.yaml").write_text(card, "utf-8")
    own.mkdir(parents=True)
    shutil.copy(ROOT / "profiles" / "gpus" / "v100.yaml", own)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    card_here = LocalGpu(0, "NVIDIA A100-SXM4-80GB", 80 << 30, 80 << 30, "nvidia-smi", compute_capability="8.0")
    monkeypatch.setattr(smi, "ask", lambda: [card_here])
    monkeypatch.setattr(apart, "run_apart", Runner())
    monkeypatch.setattr(apart, "check_installed", lambda: None)
    monkeypatch.setattr(calibration, "probe", readings)
    return tmp_path


@pytest.mark.sweep(64)
@pytest.mark.parametrize(("command", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_an_example_runs(command: str, example: str, folder: Path) -> None:
    """It may not fit (3) or be tight (4), and is never a mistake."""
    assert example.startswith(command)
    if " new " in example:  # it writes the file that others read
        (folder / "my-card.yaml").unlink()
    ran = shell(as_shell(example), folder) if re.search(r"[|>$]", example) else run(*words(as_shell(example)))
    assert ran.code in (0, 3, 4), ran.err
    expected = (" is read as ", " is taken instead")  # of files of training programs: what is read, and what is written
    told = [line for line in ran.err.splitlines() if not any(words in line for words in expected)]
    assert told == []


def words(line: str) -> list[str]:
    """The arguments, as a shell splits them."""
    program, *arguments = shlex.split(line, comments=True)
    assert program == "vramplan"
    return arguments


def shell(line: str, folder: Path) -> Ran:
    """A line with a redirection or a pipe: by a shell, the program as a process."""
    program = folder / "bin" / "vramplan"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramplan "$@"\n', "utf-8")
    program.chmod(0o755)
    path = os.pathsep.join((str(program.parent), os.environ.get("PATH", os.defpath)))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_job_options_are_those_of_fit() -> None:
    assert set(JOB) <= {parameter.name for parameter in build("fit").params}
