"""docs/ says what the program does: its examples are run, and its tables are compared with the code.

A block of YAML or shell has comments before it that say what is done with it:

    <!-- check --strict: exit 4 -->       `vramplan check FILE --strict` ends with 4; `validate` likewise
    <!-- run: exit 0 -->                  bash runs it, beside the files of the page
    <!-- profile: gpus/NAME.yaml -->      lies there in the folder `profiles`, beside the other files of the page
    <!-- ci -->                           its lines that call vramplan are run, and end with 0
    <!-- hook -->                         its hooks are ours, and pass with the files of the page that they name
    <!-- schema: error -->                JSON of that schema

Transcripts (```console) are those of test_readme.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import typer
import yaml

from tests.docs import model_types
from tests.docs.cli import JOB
from vramplan.catalog import gpus, models, runtimes, shapes
from vramplan.catalog.config_classes import MODEL_TYPES, NEUTRAL
from vramplan.cli.app import app
from vramplan.cli.commands import COMMANDS, build
from vramplan.exit_codes import ExitCode
from vramplan.options import table, words
from vramplan.report.json import SCHEMAS, schema

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = tuple(
    DOCS / name
    for name in (
        *("index.md", "job-format.md", "exit-codes.md", "profiles.md", "timeline.md", "textbook.md", "batch.md"),
        "losses.md",
        "ci.md",
    )
)

BLOCK = re.compile(
    r"^(?P<comments>(?:<!-- [^\n]* -->\n)*)```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"<!-- (?P<what>[^:]+?)(?:: (?P<detail>.+?))? -->")
FILE_NAME = re.compile(r"# ([\w.-]+\.ya?ml)\n")
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:)(?P<page>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
CODE = re.compile(r"`([^`\n]+)`")


class Task(NamedTuple):
    """One thing to do with one block."""

    page: Path
    line: int
    language: str
    body: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: {self.what}"


def blocks(page: Path) -> Iterator[tuple[int, str, str, list[tuple[str, str]]]]:
    """Line, language, body and comments of each block."""
    text = page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        comments = [(found["what"], found["detail"] or "") for found in COMMENT.finditer(block["comments"])]
        yield text.count("\n", 0, block.start("body")), block["language"], block["body"], comments


TASKS = [
    Task(page, line, language, body, what, detail)
    for page in PAGES
    for line, language, body, comments in blocks(page)
    for what, detail in comments
]


def tasks(*kinds: str) -> list[Task]:
    """The tasks whose first word is one of `kinds`; a table of contents that has become empty is a mistake."""
    found = [task for task in TASKS if task.what.split()[0] in kinds]
    assert found
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a snippet is run: `vramplan` on the path is the one under test."""
    (tmp_path / ".bin").mkdir()
    program = tmp_path / ".bin" / "vramplan"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vramplan "$@"\n', "utf-8")
    program.chmod(0o755)
    return tmp_path


def write_files(page: Path, folder: Path) -> None:
    """The named YAML blocks of a page, and its profiles."""
    for _, language, body, comments in blocks(page):
        name = FILE_NAME.match(body)
        if language == "yaml" and name:
            (folder / name[1]).write_text(body, "utf-8")
        for what, detail in comments:
            if what == "profile":
                (folder / "profiles" / detail).parent.mkdir(parents=True, exist_ok=True)
                (folder / "profiles" / detail).write_text(body, "utf-8")


def shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.pathsep.join((str(folder / ".bin"), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": str(ROOT),
        "PYTHONIOENCODING": "utf-8",
        "LC_ALL": "C.UTF-8",
        "HOME": str(folder),
    }
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
    )


def wanted_code(task: Task) -> int:
    found = re.fullmatch(r"exit (\d+)", task.detail)
    assert found, f"{task}: write '{task.what}: exit N'"
    return int(found[1])


# Examples


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_says_what_is_done_with_it(page: Path) -> None:
    known = {
        "yaml": {"check", "validate", "profile", "ci", "hook"},
        "bash": {"run"},
        "json": {"schema"},
        "console": set(),
    }
    for line, language, _, comments in blocks(page):
        kinds = {what.split()[0] for what, _ in comments}
        assert language in known, f"line {line}"
        assert kinds <= known[language], f"line {line}"
        assert kinds or language == "console", f"line {line}"


@pytest.mark.sweep(12)
@pytest.mark.snapshot
@pytest.mark.parametrize("task", tasks("check", "validate"), ids=str)
def test_a_job_file_ends_as_the_page_says(task: Task, folder: Path) -> None:
    (folder / "jobs.yaml").write_text(task.body, "utf-8")
    done = shell(f"vramplan {task.what} jobs.yaml", folder)
    assert done.returncode == wanted_code(task), done.stdout + done.stderr


@pytest.mark.sweep(18)
@pytest.mark.snapshot
@pytest.mark.parametrize("task", tasks("run"), ids=str)
def test_a_shell_snippet_ends_as_the_page_says(task: Task, folder: Path) -> None:
    write_files(task.page, folder)
    done = shell(task.body, folder)
    assert done.returncode == wanted_code(task), done.stdout + done.stderr
    assert "not reached" not in done.stdout


@pytest.mark.sweep(3)
@pytest.mark.snapshot
@pytest.mark.parametrize("task", tasks("ci"), ids=str)
def test_the_gate_of_a_ci_file_passes(task: Task, folder: Path) -> None:
    write_files(task.page, folder)
    lines = [text for text in texts(yaml.safe_load(task.body)) if text.startswith("vramplan ")]
    assert lines
    for line in lines:
        done = shell(f"set -eo pipefail\n{line}", folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.snapshot
@pytest.mark.parametrize("task", tasks("hook"), ids=str)
def test_a_hook_of_pre_commit_passes(task: Task, folder: Path) -> None:
    write_files(task.page, folder)
    known = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    for hook in (hook for repo in yaml.safe_load(task.body)["repos"] for hook in repo["hooks"]):
        ours = known[hook["id"]]
        named = [
            path.name for path in sorted(folder.iterdir()) if re.search(hook.get("files", ours["files"]), path.name)
        ]
        assert len(named) > 1  # a hook is called with many files
        done = shell(shlex.join([*ours["entry"].split(), *hook.get("args", ()), *named]), folder)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("task", tasks("profile"), ids=str)
def test_a_profile_is_read_and_named_like_its_file(task: Task, tmp_path: Path) -> None:
    path = tmp_path / Path(task.detail).name
    path.write_text(task.body, "utf-8")
    load: Any = {"gpus": gpus.load_gpu_profile, "models": models.load_model_profile}[task.detail.split("/")[0]]
    assert load(path).name == path.stem


@pytest.mark.parametrize("task", tasks("schema"), ids=str)
def test_json_has_the_schema_that_the_page_says(task: Task) -> None:
    jsonschema.validate(json.loads(task.body), schema(task.detail))


def texts(value: Any) -> Iterator[str]:
    """Every text in a document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


# Words


@cache
def mentioned(page: str) -> frozenset[str]:
    """Everything between backticks outside of blocks: whole, and its parts between dots, spaces and equal signs."""
    text = BLOCK.sub("", (DOCS / page).read_text("utf-8"))
    found = set(CODE.findall(text))
    return frozenset(found | {part for code in found for part in re.split(r"[. =]|\[\]", code)})


def missing(needed: Iterable[str], page: str) -> list[str]:
    return sorted(set(needed) - mentioned(page))


def options(*, of_jobs: bool) -> Iterator[str]:
    """Every option of every command, hidden ones too: those that describe a job, or all others."""
    commands: list[Any] = [typer.main.get_command(app), *map(build, COMMANDS)]
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        for parameter in command.params:
            if parameter.param_type_name == "option" and (parameter.hidden or parameter.name in JOB) == of_jobs:
                yield from (*parameter.opts, *parameter.secondary_opts)


def schema_keys(value: Any) -> Iterator[str]:
    """Every key that a schema names."""
    if isinstance(value, dict):
        yield from value.get("properties", {})
        for key, inner in value.items():
            if key != "$defs":
                yield from schema_keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schema_keys(inner)


def test_every_option_is_described() -> None:
    assert "--micro-batch" in set(options(of_jobs=True))
    assert "--show-completion" in set(options(of_jobs=False))
    assert not missing(options(of_jobs=True), "job-format.md")
    assert not missing(options(of_jobs=False), "cli.md")


@pytest.mark.parametrize(
    "keys",
    [
        *(words.CASE_KEYS, words.MEASURED_KEYS, words.GPU_KEYS, words.CAPACITY_BASES),
        *(words.METRICS, words.OUTCOMES, words.USES, words.CONFIDENCES),
        *((option.name, *option.words) for option in table.TABLE),
        (*shapes.FIELDS, *shapes.TASKS, *shapes.ACTIVATIONS),
    ],
    ids=lambda keys: keys[0],
)
def test_every_word_of_the_job_format_is_described(keys: tuple[str, ...]) -> None:
    assert not missing(keys, "job-format.md")


# where the keys of a command's JSON answer are described, if not beside those of `fit`
ANSWERS = {
    "checkpoints": "checkpointing.md",
    "explain": "explain.md",
    "explain-time": "time.md",
    "timeline": "timeline.md",
    "walkthrough": "textbook.md",
    "measure": "measure.md",
    "calibrate": "local-gpu.md",
    "read": "configs.md",
    "compare": "compare.md",
    "plan": "plan.md",
    "fit": "batch.md",  # the advice; all else is in the job format
    "runtimes": "runtimes.md",
    "profile-lint": "profiles.md",
    "profile-new": "profiles.md",
    "profile-diff": "profiles.md",
    "profile-path": "profiles.md",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_of_the_json_answer_is_described(name: str) -> None:
    known = mentioned("job-format.md") | mentioned(ANSWERS.get(name, "job-format.md"))
    assert sorted(set(schema_keys(schema(name))) - known) == []


def test_every_field_of_a_profile_is_described() -> None:
    fields = (*gpus.FIELDS, *models.FIELDS, *runtimes._READERS)
    assert not missing(fields, "profiles.md")


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the tables under a heading, without the head of each."""
    text = (DOCS / page).read_text("utf-8")
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, heading
    lines = [line for line in section[1].splitlines() if line.startswith("| `") or re.match(r"\| \d", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("heading", "known", "modelled"),
    [
        ("Precision", {*words.PRECISIONS} - {"bf16", "fp16", "tf32"}, {*words.PRECISIONS}),
        ("Optimizers", {*words.OPTIMIZERS}, {*words.OPTIMIZERS}),
        ("Activation checkpointing", {*words.CHECKPOINTINGS}, {*words.CHECKPOINTINGS}),
        ("Loss", {*words.LOSSES}, {*words.LOSSES}),
        ("Runtimes", {*words.RUNTIMES}, {*words.RUNTIMES}),
    ],
)
def test_what_is_refused_is_said_to_be(heading: str, known: set[str], modelled: set[str]) -> None:
    today = {cells[0].strip("`"): "refused" not in cells[-1] for cells in rows("job-format.md", heading)}
    assert today == {word: word in modelled for word in known}


def columns_of_the_model_types() -> dict[str, dict[str, str]]:
    """What the tables of defaults say: model type -> key -> cell; an empty cell says nothing."""
    found: dict[str, dict[str, str]] = {}
    types: list[str] = []
    for line in (DOCS / "job-format.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
        if cells[0] == "Key" and cells[1] in MODEL_TYPES:
            types = cells[1:]
            found |= {name: {} for name in types}
        elif not line.startswith("|"):
            types = []
        elif types and cells[0].startswith("`"):
            for name, cell in zip(types, cells[1:], strict=True):
                if cell:
                    found[name][cells[0].strip("`")] = cell
    return found


def test_the_defaults_of_the_model_types_are_those_of_the_program() -> None:
    table = columns_of_the_model_types()
    assert list(table) == list(MODEL_TYPES)
    given = {"attention_heads": 8, "attention_dropout": 0.125, "hidden_dropout": 0.25, "hidden_size": 100, "layers": 7}
    given |= {"image_size": 224, "patch_size": 16, "depths": (1, 2), "widths": (3, 4)}
    given |= {"intermediate_size": 300, "experts.shared": 2, "experts.intermediate_size": 70}
    given |= {"latent_attention.plain_size": 20, "latent_attention.rotary_size": 10}
    given |= {"qkv_bias": True, "positions": "learned", "gated_mlp": False}
    in_words = {**{f"as {key}": value for key, value in given.items()}, "4 x hidden_size": 400}
    in_words["true with learned positions"] = True
    given["vision_layers"] = 20
    in_words["all but every fourth block"] = (0, 1, 2, 4, 5, 6)
    given |= {"sliding_window": 10, "sliding_window_pattern": 4}
    in_words["the blocks without a window"] = (3,)
    in_words |= {"every fourth block": (3,), "every eighth block": (7, 15)}
    in_words["the blocks 8, 16 and 24"] = (8, 16)
    in_words["4 x hidden_size, of which a gated MLP has two thirds"] = 400
    in_words |= {"the blocks 3, 7, 15, 23 and 30": (3, 7, 15), "every fifth block from 3 to 38": (3,)}
    in_words |= {"the sum of depths": 3, "the last of widths": 4, "4 x the last of widths": 16}
    in_words["the first of widths / attention_heads"] = 0
    in_words["(image_size // patch_size) ** 2 + 1"] = 197
    in_words["(image_size // patch_size) ** 2 + 2"] = 198
    in_words["whether there are several key-value heads"] = False
    given |= {"state_space.heads": 4, "state_space.input_bias": True}
    in_words |= {"2 x hidden_size / heads": 50, "1024 / heads": 256, "as input_bias": True}
    in_words["all blocks"] = (0, 1, 2, 3, 4, 5, 6)
    in_words |= {"all blocks but 4, 12, 20 and so on": (0, 1, 2, 3, 5, 6), "10 of more than 10 blocks": 0}
    in_words |= {"the blocks 0, 2, 4 and so on": (0, 2, 4, 6), "2 x hidden_size": 200, "hidden_size / 16": 7}
    in_words |= {"shared x intermediate_size": 140, "plain_size + rotary_size": 30}
    given["text_type"] = "gemma2"
    in_words |= {"4096 with a gemma2, else null": 4096, "true with a gemma2": True}
    in_words |= {"true with a qwen3": False, "true with a qwen2": False}  # of a gemma2
    for name, said in table.items():
        kind = MODEL_TYPES[name]
        assert said.pop("family") == kind.family
        assert said.pop("task") == kind.tasks[0]
        assert {key for key, cell in said.items() if cell.endswith("*")} == set(kind.fixed)
        assert set(said) == {*kind.defaults, *kind.fixed}
        for key, cell in said.items():
            default = {**kind.defaults, **kind.fixed}[key]
            expected = default(given) if callable(default) else default
            text_value = cell.removesuffix("*")
            assert in_words.get(text_value, text_value) == (
                expected if text_value in in_words else spelled(expected)
            ), f"{name}.{key}"


def test_the_tables_of_the_model_types_are_those_that_the_program_writes() -> None:
    text = model_types.PAGE.read_text("utf-8")
    assert model_types.page(text) == text


def test_what_the_tables_leave_out_is_what_the_page_says() -> None:
    """A key without a cell: no share but 1, `pre_norm` true, no blocks, the others false, 0 or null."""
    special = {"partial_rotary_factor": 1.0, "pre_norm": True, "unrotated_layers": (), "vision_full_layers": ()}
    special |= {"vision_tapped_layers": (), "cross_attention_layers": ()}
    special |= {"vision_deepstack_layers": (), "state_space.feedforward_layers": ()}
    assert {key: NEUTRAL[key] for key in special} == special
    assert all(value in (False, None) for key, value in NEUTRAL.items() if key not in special)


def spelled(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_the_exit_codes_are_those_of_the_program() -> None:
    codes = {int(cells[0]) for cells in rows("exit-codes.md", "Exit codes")}
    assert codes == {value for name, value in vars(ExitCode).items() if name.isupper()}


# Links


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of the headings of a page, as GitHub and GitLab make them."""
    text = BLOCK.sub("", page.read_text("utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_links_lead_to_a_page_and_a_heading(page: Path) -> None:
    for link in LINK.finditer(BLOCK.sub("", page.read_text("utf-8"))):
        target = (page.parent / link["page"]).resolve() if link["page"] else page
        assert target.is_file(), link[0]
        assert link["anchor"] is None or link["anchor"] in anchors(target), link[0]


def test_the_index_names_every_page() -> None:
    text = (DOCS / "index.md").read_text("utf-8")
    linked = {link["page"] for link in LINK.finditer(text)}
    assert linked == {"../README.md", *(page.name for page in DOCS.glob("*.md"))} - {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_one_sentence_per_line(page: Path) -> None:
    for line in BLOCK.sub("", page.read_text("utf-8")).splitlines():
        if not line.startswith(("|", "#")):
            assert not re.search(r"[a-z`)][.?!] [A-Z`]", line), line


def repeated_lines(text: str) -> list[str]:
    """Lines of prose that stand again within six lines, by their first sixty characters: the scar of a merge."""
    found, fenced = [], False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and len(line) >= 60 and not set(line) <= set("|-: "):
            found += [line for other in lines[number + 1 : number + 7] if other[:60] == line[:60] and line[0] != "|"]
            found += [line for other in lines[number + 1 : number + 7] if other == line and line[0] == "|"]
    return found


@pytest.mark.parametrize("page", sorted([*DOCS.glob("*.md"), ROOT / "README.md"]), ids=lambda page: page.name)
def test_no_line_of_a_page_stands_twice(page: Path) -> None:
    assert repeated_lines(page.read_text("utf-8")) == []


def test_a_line_that_stands_twice_is_found() -> None:
    line = "The fields are the keys of a model in the job format, in the order of the format: `family`"
    assert repeated_lines(f"{line}, one\n\n{line}, two\n") == [f"{line}, one"]


FILE = re.compile(r"`((?:vramplan|tests|docs|profiles)/[\w./-]*\w/?)`")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(FILE.findall(page.read_text("utf-8")))
    assert not {name for name in named if not (ROOT / name).exists()}


def test_the_page_about_profiles_names_every_field_of_a_model() -> None:
    line = next(one for one in (DOCS / "profiles.md").read_text("utf-8").splitlines() if "#models): `family`" in one)
    assert CODE.findall(line) == list(models.FIELDS)
