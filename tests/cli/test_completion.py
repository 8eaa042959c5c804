"""What TAB offers; that the shells offer it is in test_shells.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.running import run
from vramplan.catalog import locate
from vramplan.cli.app import app
from vramplan.cli.commands import COMMANDS
from vramplan.cli.completion import complete
from vramplan.cli.output import FORMATS, GATE_FORMATS
from vramplan.cli.shells import SHELLS
from vramplan.options import table, words

ROOT = Path(__file__).resolve().parents[2]
FILES, DIRECTORIES = "\tfiles", "\tdirectories"


def offered(*line: str) -> list[str]:
    """What is offered for the last word of a command line."""
    return [word.text for word in complete(typer.main.get_command(app), line)]


# Words


def test_targets_are_layers_of_the_model_that_is_given() -> None:
    assert offered("fit", "--targets", "") == ["all-linear"]
    assert offered("fit", "--model", "gpt2", "--targets", "c_f") == ["c_fc"]
    assert offered("fit", "--model", "mixtral-8x7b", "--targets", "w1,w") == ["w1,w3", "w1,w2"]
    assert offered("fit", "--model", "mixtral-8x7b", "--adapter", "ia3", "--targets", "w") == []
    assert offered("fit", "--model", "nosuchmodel", "--targets", "a") == ["all-linear"]


def test_commands_are_offered_with_what_they_are_for() -> None:
    assert offered("") == list(COMMANDS)
    assert offered("che") == [name for name in COMMANDS if name.startswith("che")]
    assert offered("gpus", "") == ["show"]
    assert offered("nosuchcommand", "") == []
    found = complete(typer.main.get_command(app), ["fit"])
    assert [word.help for word in found] == [COMMANDS["fit"].short_help]


def test_options_are_offered_once_and_hidden_ones_never() -> None:
    first = offered("fit", "--")
    assert {"--model", "--gpu", "--micro-batch", "--format", "--strict", "--help"} <= set(first)
    assert not {"--micro-batch-size", "-m", "--no-hold-outputs"} & set(first)
    assert offered("fit", "--micro-batch-") == ["--micro-batch-size"]
    assert offered("fit", "--no-h") == ["--no-hold-outputs"]
    assert "-m" in offered("fit", "-")
    assert "--model" not in offered("fit", "--model", "gpt2", "--")
    assert "--profiles" in offered("fit", "--profiles", "a", "--"), "it can be given again"
    assert offered("fit", "") == first
    assert offered("--ver") == ["--version"]


WORDS = [
    ("--precision", ("auto", *words.PRECISIONS)),
    ("--optimizer", tuple(word.replace("RANK", "") for word in words.OPTIMIZERS)),
    ("--optimizer-implementation", words.IMPLEMENTATIONS),
    ("--checkpointing", tuple(word.split(":")[0] + ":" if ":" in word else word for word in words.CHECKPOINTINGS)),
    ("--attention", table.find("attention").words),
    ("--runtime", words.RUNTIMES),
    ("--sharding", tuple(word.replace("N", "") for word in words.SHARDINGS)),
    ("--format", FORMATS),
]


@pytest.mark.parametrize(("option", "known"), WORDS, ids=[option for option, _ in WORDS])
def test_the_words_of_an_option_are_offered(option: str, known: tuple[str, ...]) -> None:
    assert offered("fit", option, "") == list(known)
    assert offered("fit", f"{option}={known[-1][:3]}")[-1] == f"{option}={known[-1]}"
    assert offered("fit", option, "nothing begins so") == []


def test_commands_that_take_several_values_are_offered_the_next_one_behind_a_comma() -> None:
    assert offered("plan", "--runtime", "meg") == ["megatron"]
    assert offered("plan", "--runtime", "al") == [words.EVERY_RUNTIME]
    assert words.EVERY_GPU in offered("compare", "--gpu", "al")
    assert words.EVERY_GPU not in offered("fit", "--gpu", "al")
    assert offered("fit", "--runtime", "al") == []
    assert offered("compare", "--runtime", "torchtune,torcht") == ["torchtune,torchtitan"]
    assert offered("compare", "--gpu", "a100-40gb,b200,rtx-40") == [
        f"a100-40gb,b200,{word}" for word in offered("compare", "--gpu", "rtx-40") if word != FILES
    ]
    assert offered("fit", "--runtime", "torchtune,torcht") == []


@pytest.mark.sweep(40)
@pytest.mark.parametrize(
    ("option", "word"), [(option, word) for option, known in WORDS for word in known], ids=lambda part: part
)
def test_a_word_that_is_offered_is_not_refused_as_unknown(option: str, word: str) -> None:
    ending = {"every:": "2", "layers:": "[[0,3]]", "hsdp:": "2"}.get(word, "")
    model, gpu = ("llama-3.2-1b", "h100") if word in ("fp8", "fsdp-fp8") else ("gpt2", "a100-80gb")
    model = "modded-nanogpt-2024-12-17" if word == "modded-nanogpt" else model  # whose only models are its own
    more = ("--runtime", "megatron", "--gpus", "2") if word == "distributed-optimizer" else ()
    ran = run("fit", "--model", model, "--gpu", gpu, option, word + ending, *more)
    assert ran.code in (0, 3) or "not modelled" not in ran.err or ran.err.startswith("error: model: gpt2 is not")
    assert "not a known" not in ran.err
    assert "is not a format" not in ran.err


def test_formats_of_gates_belong_to_check() -> None:
    assert offered("check", "jobs.yaml", "--format", "") == list(GATE_FORMATS)


@pytest.mark.parametrize("kind", ["gpus", "models"])
def test_every_profile_is_offered_by_name(kind: Any) -> None:
    option = {"gpus": "--gpu", "models": "--model"}[kind]
    names = set(locate.files(kind, ()))
    more = {FILES, "local"} if kind == "gpus" else {FILES}
    assert len(names) > 40
    assert set(offered("fit", option, "")) == names | more
    assert set(offered("fit", option[:3].replace("--", "-"), "")) == names | more
    assert set(offered(kind, "show", "")) == names | {FILES}
    assert set(offered(kind, "--name", "")) == names


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (("fit", "--gpu", "v100-sxm2-32"), "v100-sxm2-32gb"),
        (("fit", "--gpu", "RTX_409"), "rtx-4090"),
        (("gpus", "show", "tesla-v100-s"), "tesla-v100-sxm2-32gb"),
        (
            (
                "fit",
                "--model=gpt2-x",
            ),
            "--model=gpt2-xl",
        ),
    ],
    ids=str,
)
def test_aliases_and_other_spellings_are_offered(line: tuple[str, ...], wanted: str) -> None:
    assert wanted in offered(*line)


def test_an_alias_that_is_offered_names_a_profile() -> None:
    from vramplan.catalog.gpus import find_gpu

    aliases = [word for letter in "aghlmqrtv" for word in offered("fit", "--gpu", letter) if "\t" not in word]
    assert len(aliases) > 100
    for alias in set(aliases) - {"local"}:
        assert find_gpu(alias, ()).name in locate.files("gpus", ())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.yaml", "kind: gpu\nname: mine\ntitle: 'My card'\naliases:\n  - my-own\n  - 'my-other'\n"),
        ("mine.json", json.dumps({"kind": "gpu", "name": "mine", "title": "My card", "aliases": ["my-own"]}, indent=1)),
        ("mine.yml", "title: My card\naliases: [my-own,\n  my-other]\n"),
    ],
)
def test_profiles_of_a_folder_are_offered(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / name).write_text(text, "utf-8")
    root = typer.main.get_command(app)
    found = complete(root, ["fit", "--profiles", str(tmp_path), "--gpu", "mi"])
    assert ("mine", "My card") in [(word.text, word.help) for word in found]
    assert "my-own" in offered("fit", f"--profiles={tmp_path}", "-g", "my-o")
    assert "mine" not in offered("fit", "--gpu", "mi")


@pytest.mark.parametrize(
    ("line", "directive"),
    [
        (("check", ""), FILES),
        (("validate", "measured"), FILES),
        (("fit", "--profiles", ""), DIRECTORIES),
        (
            (
                "fit",
                "--profiles=some",
            ),
            DIRECTORIES,
        ),
        (("fit", "--model", "./conf"), FILES),
    ],
    ids=str,
)
def test_the_shell_is_asked_for_its_files(line: tuple[str, ...], directive: str) -> None:
    assert offered(*line) == [directive]


def test_the_keys_of_an_answer_are_offered() -> None:
    document = run("fit", "-m", "gpt2", "-g", "v100", "--format", "json").document
    assert [key for key in offered("fit", "--print", "") if "." not in key] == list(document)
    for key in offered("fit", "--print", "p"):
        assert run("fit", "-m", "gpt2", "-g", "v100", "--print", key).code == 0
    assert "fields" in offered("gpus", "show", "v100", "--print", "f")


def test_numbers_are_typed() -> None:
    assert offered("fit", "--micro-batch", "") == []
    assert offered("fit", "--seq", "1") == []


# The protocol


def answered(shell: str, *line: str, **more: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_VRAMPLAN_COMPLETE": shell, **more}
    done = subprocess.run([sys.executable, "-m", "vramplan", *line], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash_gets_words_and_the_others_descriptions() -> None:
    assert answered("bash", "fit", "--gpu", "v100s") == "v100s\n\tfiles\n"
    for shell in ("zsh", "fish"):
        assert answered(shell, "fit", "--gpu", "v100s") == "v100s\tNVIDIA V100S PCIe 32 GB\n\tfiles\n"
    assert answered("zsh", "fit", "--micro-batch", "") == ""


def test_bash_gets_what_stands_behind_its_last_break() -> None:
    assert answered("bash", "fit", "--gpu", "=", "v100s") == "v100s\n\tfiles\n"
    assert answered("bash", "fit", "--gpu", "=") == answered("bash", "fit", "--gpu", "=", "")
    assert answered("bash", "fit", "--gpu=v100s") == "--gpu=v100s\n\tfiles\n", "where = breaks no words"
    assert answered("bash", "fit", "--checkpointing", "laye") == "layers:\n"
    assert answered("bash", "fit", "--profiles", "'", "--optimizer", "adamw", "--runtime", "py") == "pytorch\n"


def test_scripts_made_by_typer_get_their_words() -> None:
    more = {"COMP_WORDS": "vramplan fit --gpu v100s", "COMP_CWORD": "3"}
    assert answered("complete_bash", **more) == "v100s\n\tfiles\n"
    asked = {"_TYPER_COMPLETE_ARGS": "vramplan models sh"}
    assert answered("complete_fish", **asked).startswith("show\t")
    asked = {"_TYPER_COMPLETE_ARGS": "vramplan fit --optimizer-implementation "}
    assert answered("complete_zsh", **asked) == "foreach\nfused\nfor-loop\ntransformers\n"


def test_what_is_wrong_is_never_offered() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_VRAMPLAN_COMPLETE": "bash", "VRAMPLAN_PROFILES": "/no/such"}
    line = ("fit", "--format", "json", "--gpu", "v100s")
    command = [sys.executable, "-m", "vramplan", *line]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such directory" in done.stderr


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    "line",
    [("fit", "--gpu", "["), ("fit", "--profiles", "/no", "-g", "a/b"), ("check", "a", "b"), ("x", "y"), ()],
    ids=str,
)
def test_a_line_that_makes_no_sense_has_an_answer_too(line: tuple[str, ...]) -> None:
    for shell in SHELLS:
        assert "Traceback" not in answered(shell, *line)


PROBE = """
import os, runpy, sys
sys.argv = ["vramplan", *sys.argv[1:]]
try:
    runpy.run_module("vramplan", run_name="__main__")
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("line", [("fit", "--gpu", ""), ("fit", "--precision", "a"), ("",)], ids=str)
def test_an_offer_loads_neither_yaml_nor_pint_nor_rich_nor_the_engine(line: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_VRAMPLAN_COMPLETE": "zsh"}
    command = [sys.executable, "-c", PROBE, *line]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    loaded = set(done.stderr.split())
    assert done.stdout
    assert "vramplan.cli.completion" in loaded
    assert not {"yaml", "pint", "rich", *(f"vramplan.{room}" for room in ("tape", "memory", "planner"))} & loaded


def test_a_command_loads_no_completion() -> None:
    program = "import sys; sys.argv = ['vramplan', 'fit', '--help']\nfrom vramplan.cli.start import main\n"
    program += "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert "Usage:" in done.stdout
    assert not {"vramplan.cli.completion", "vramplan.cli.shells"} & set(done.stderr.split())


def test_schemas_are_offered_and_files_of_jobs_are_asked_for() -> None:
    assert offered("schema", "job") == ["job-file"]
    assert offered("fit", "--job", "") == offered("check", "one.yaml", "") == offered("check", "")
