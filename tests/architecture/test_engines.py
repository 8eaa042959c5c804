"""No file of the rooms that jobs are resolved in compares the name of a training program, or imports its files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from vramplan.engines import FOLDERS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("catalog", "job")
FILES = [file for room in ROOMS for file in sorted((ROOT / "vramplan" / room).rglob("*.py"))]
NAMES = {*FOLDERS, *FOLDERS.values()}
pytestmark = pytest.mark.contract


def named(node: ast.AST) -> set[str]:
    """The names of programs among the constants of a comparison."""
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and one.value in NAMES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "vramplan")))
def test_no_comparison_names_a_training_program(file: Path) -> None:
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    compared = {name for node in nodes if isinstance(node, ast.Compare) for name in named(node)}
    imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    if file.name == "releases.py":
        compared -= {"torchtune"}
    assert not compared
    assert not {module for module in imported if module.startswith("vramplan.engines.")}
