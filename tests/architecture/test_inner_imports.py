"""Imports inside functions: each is paid for where nobody looks for it, and hides who knows whom."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import tree
from vramplan.cli import BODIES, named
from vramplan.cli.commands import COMMANDS

PACKAGE = Path(__file__).resolve().parents[2] / "vramplan"

MOST = 58
"""As many as there are now, of ours and of others. Those that are left keep a room or a large library off the path of a
plain `fit`, or name what a machine need not have; a new one needs a table."""

MOST_OF_CLI = 4
"""That of `start.py`, which catches a keyboard interrupt while the rest is imported, and three of the standard library.
The others go through `named`."""


def inner_imports(node: ast.AST, inside: bool = False) -> Iterator[str]:
    """What is imported inside functions of a file; blocks for type checkers do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if inside and isinstance(child, ast.ImportFrom):
            yield child.module or ""
        if inside and isinstance(child, ast.Import):
            yield from (one.name for one in child.names)
        yield from inner_imports(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))


def count_in(folder: Path) -> dict[str, int]:
    """How many there are, by file."""
    found = {file: list(inner_imports(tree(file))) for file in folder.rglob("*.py")}
    return {str(file.relative_to(PACKAGE)): len(names) for file, names in found.items() if names}


@pytest.mark.contract
@pytest.mark.parametrize(("folder", "most"), [(PACKAGE, MOST), (PACKAGE / "cli", MOST_OF_CLI)], ids=["all", "cli"])
def test_few_modules_are_imported_inside_functions(folder: Path, most: int) -> None:
    found = count_in(folder)
    assert sum(found.values()) <= most, sorted(found.items(), key=lambda one: -one[1])


@pytest.mark.contract
def test_imports_inside_functions_are_seen() -> None:
    source = "import vramplan.a\ndef f():\n  if x:\n    from vramplan.b import c\n  import vramplan.d, os\n"
    guarded = "def g():\n  if TYPE_CHECKING:\n    from vramplan.b import c\n"
    assert list(inner_imports(ast.parse(source + guarded))) == ["vramplan.b", "vramplan.d", "os"]


def declarations() -> list[tuple[str, Callable[..., None]]]:
    """Every declared command with the address of what it runs."""
    for entry in COMMANDS.values():
        named(entry.module)
    return sorted(BODIES.items())


@pytest.mark.contract
@pytest.mark.parametrize(("address", "declaration"), declarations(), ids=[one for one, _ in declarations()])
def test_what_a_command_runs_takes_what_it_declares(address: str, declaration: Callable[..., None]) -> None:
    body: Any = named(address)
    taken = inspect.signature(body).parameters.values()
    assert [one.name for one in taken] == list(inspect.signature(declaration).parameters)
    assert all(one.default is one.empty for one in taken), "the defaults are the declaration's"


@pytest.mark.contract
def test_every_module_of_bodies_is_run_by_a_declaration() -> None:
    files = {file.stem for file in (PACKAGE / "cli" / "runs").glob("*.py")}
    run = {address.partition(":")[0].rpartition(".")[2] for address, _ in declarations()}
    assert files - run == {
        "__init__",
        "jobs",
        "configs",
        "emit",
        "listings",
        "completion",
    }  # helpers, and options of the program itself
    assert run <= files
