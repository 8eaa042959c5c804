"""Who may import what, and what a process pays for: the shape of the program, held by tests."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import tree

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vramplan"

CORE = (
    *("options", "planner", "replay", "results", "values"),
    *("exit_codes.py", "errors.py", "tuples.py", "version.py"),
)
CORE_FILES = sorted(
    file for name in CORE for file in ((PACKAGE / name).rglob("*.py") if "." not in name else [PACKAGE / name])
)
FILE_ACCESS = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "urllib"}

# What a process imported and which profiles it opened, as one line of JSON on stderr when it is done.
PROBE = """
import json, sys
opened = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        opened.append(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode())
sys.addaudithook(hook)
sys.argv[0] = "vramplan"
from vramplan.cli.app import main
try:
    main()
except SystemExit as stopped:
    code = stopped.code
opened = list(opened)
print(json.dumps({"code": code, "modules": sorted(sys.modules), "opened": opened}), file=sys.stderr)
"""


@cache
def probe(*words: str) -> dict[str, Any]:
    """Run a command in a process of its own and say what it touched; several tests look at one run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], capture_output=True, text=True, env=environment, cwd=ROOT, check=True
    )
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return found


def test_the_import_contracts_of_pyproject_hold() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--no-logo"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imports_of(file: Path) -> set[str]:
    """Every module that a file imports anywhere in it, for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative imports hide where a name is from"
            found.add(node.module or "")
    return found


def test_the_core_imports_the_standard_library_and_itself_and_reads_no_files() -> None:
    rooms = {f"vramplan.{name.removesuffix('.py')}" for name in CORE}
    wrong = []
    for file in CORE_FILES:
        for module in imports_of(file):
            top = module.split(".")[0]
            if module.startswith("vramplan.engines"):
                continue  # the registry; who may import more of it is in the import contracts
            own = top == "vramplan" and ".".join(module.split(".")[:2]) in rooms
            if not own and (top not in sys.stdlib_module_names or top in FILE_ACCESS):
                wrong.append(f"{file.relative_to(PACKAGE)}: {module}")
    assert wrong == []


def test_the_core_neither_prints_nor_opens() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)}:{node.lineno}: {node.func.id}"
        for file in CORE_FILES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in {"print", "open", "input", "exec", "eval"}
    ]
    assert wrong == []


def test_fit_in_json_loads_neither_rich_nor_pint() -> None:
    modules = probe("fit", "--model", "gpt2-xl", "--gpu", "v100", "--format", "json")["modules"]
    assert not {"rich", "pint"} & set(modules)


def test_fit_in_a_pipe_loads_neither_rich_nor_pint() -> None:
    modules = probe("fit", "--model", "gpt2-xl", "--gpu", "v100")["modules"]
    assert not {"rich", "pint"} & set(modules)


@pytest.mark.parametrize("output", [[], ["--format", "json"]], ids=["text", "json"])
def test_a_fit_loads_no_other_format(output: list[str]) -> None:
    modules = set(probe("fit", "--model", "gpt2-xl", "--gpu", "v100", *output)["modules"])
    assert not {"csv", "xml", "html"} & modules
    assert not {f"vramplan.report.{name}" for name in ("yaml", "csv", "markdown", "junit", "github")} & modules


def test_a_fit_loads_no_textbook_and_no_advice() -> None:
    modules = probe("fit", "--model", "gpt2-xl", "--gpu", "v100")["modules"]
    values = "vramplan.values.textbook"  # one type for both kinds of jobs
    modules = [name for name in modules if name != values]
    assert not [name for name in modules if "textbook" in name or "advice" in name or name == "fractions"]


@pytest.mark.parametrize("words", [["--help"], ["fit", "--help"], ["check", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_neither_yaml_nor_pint_nor_rich_nor_the_engine(words: list[str]) -> None:
    modules = set(probe(*words)["modules"])
    assert not {"yaml", "pint", "rich"} & modules
    rooms = ("answers", "catalog", "job", "planner", "replay", "report")
    assert not {f"vramplan.{room}" for room in rooms} & modules
    assert not [name for name in modules if name.startswith("vramplan.engines.")]


def test_the_list_of_commands_reads_no_table_of_options() -> None:
    assert "vramplan.options" not in probe("--help")["modules"]


@pytest.mark.parametrize("output", [[], ["--format", "json"]], ids=["text", "json"])
def test_a_fit_opens_one_gpu_one_model_one_runtime_and_one_stack_file(output: list[str]) -> None:
    opened = probe("fit", "--model", "gpt2-xl", "--gpu", "v100", *output)["opened"]
    profiles = [Path(name) for name in opened if name.endswith((".yaml", ".yml"))]
    assert sorted(f"{file.parent.name}/{file.name}" for file in profiles) == [
        "gpus/v100.yaml",
        "models/gpt2-xl.yaml",
        "runtimes/transformers.yaml",
        "stacks/pytorch.yaml",
    ]


OWN_MODULES = 172
"""Modules of ours that a plain `fit` may import. Each costs a third of a millisecond in every run.

Five of them are the faces of folders of `job/`, a line each.

Ten of them read other spellings, take what the program does by default (clipping, the checkpoint's element type), and
say the plan in its own words. Eleven say how long its step takes.
One has what a resolved job takes as it was given, and one the records that several micro-batches share.
Two are parts of a record: what was played, and the states that stand.
Four have the rules of operators that every family runs, four are tables of what is imported on demand,
and two say what a family can do.
"""


def test_a_plain_fit_imports_few_modules() -> None:
    modules = probe("fit", "--model", "gpt2-xl", "--gpu", "v100")["modules"]
    own = [name for name in modules if name.partition(".")[0] == "vramplan"]
    assert len(own) <= OWN_MODULES, own


def test_a_plain_fit_loads_no_technique_no_engine_and_one_family() -> None:
    modules = probe("fit", "--model", "gpt2-xl", "--gpu", "v100")["modules"]
    loaded = {name.removeprefix("vramplan.") for name in modules if name.startswith("vramplan.")}
    techniques = ("replay.techniques.", "replay.sharding", "replay.pipeline")
    clips = {"replay.techniques.clipping"}  # as the Trainer does unless it is told otherwise
    assert {name for name in loaded if name.startswith(techniques)} == clips
    assert {name for name in loaded if name.startswith("replay.models.")} == {
        "replay.models.gpt2",
        *(
            f"replay.models.{name}" for name in ("blocks", "capable", "heads", "modules", "part_names", "parts", "rows")
        ),  # that all families share
    }
    engines = {name for name in loaded if name.startswith("engines.")}
    assert {name.split(".")[1] for name in engines} <= {"transformers"}
    assert {name for name in loaded if name.startswith("catalog.families.")} == {"catalog.families.gpt2"}
