"""Only engines and model families know the names of engines and model families."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import tree
from vramplan.catalog.config_classes import FAMILY_OF, OF_RUNTIMES
from vramplan.engines import FOLDERS

VRAMPLAN = Path(__file__).resolve().parents[2] / "vramplan"
THEIRS = (
    "engines",
    "replay/models",
    "catalog/families",
    "configs/programs",  # each reads the files of one program, in its words
    "configs/writers",  # each writes the files of one program
)
REGISTRIES = (
    "catalog/config_classes.py",  # which family each model type is of
    "catalog/shapes.py",  # names that people ask for, for near matches
    "catalog/generic.py",  # types that are not modelled, and why
    "configs/registry.py",  # which module reads which program's files
    "configs/shell/commands.py",  # commands that start others, of which one has the name of its program
    "measure/apart.py",  # Transformers is a package here
    "measure/here.py",
    "planner/time/fitted.py",  # the runs that a constant was fitted from
    "cli/hints.py",  # options of other programs
)
FILES = [
    file
    for file in sorted(VRAMPLAN.rglob("*.py"))
    if not file.relative_to(VRAMPLAN).as_posix().startswith((*(f"{room}/" for room in THEIRS), *REGISTRIES))
]
ASKS = ("get", "startswith", "endswith")
NAMES = {*FOLDERS, *FOLDERS.values(), *FAMILY_OF, *FAMILY_OF.values(), *OF_RUNTIMES}
pytestmark = pytest.mark.contract


def constants(node: ast.AST) -> Iterator[ast.expr]:
    """What something is compared with, looked up among or asked for."""
    if isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from node.elts
    elif isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    elif isinstance(node, ast.MatchValue):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS:
        yield from node.args


def test_no_other_file_compares_the_name_of_an_engine_or_a_family() -> None:
    found = {
        (file.relative_to(VRAMPLAN).as_posix(), one.value)
        for file in FILES
        for node in ast.walk(tree(file))
        for one in constants(node)
        if isinstance(one, ast.Constant) and one.value in NAMES
    }
    assert found == set()


def test_the_test_sees_a_comparison() -> None:
    lines = ("family == 'llama'", "family in ('gpt2', 'x')", "{'t5': 1}[family]", "name.startswith('megatron')")
    for line in lines:
        nodes = ast.walk(ast.parse(line))
        assert any(one.value in NAMES for node in nodes for one in constants(node) if isinstance(one, ast.Constant))


@pytest.mark.parametrize("room", ["catalog", "job"])
def test_no_room_imports_the_files_of_an_engine(room: str) -> None:
    nodes = [node for file in (VRAMPLAN / room).rglob("*.py") for node in ast.walk(tree(file))]
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {module for module in imported if module.startswith("vramplan.engines.")}
