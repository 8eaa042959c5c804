"""No circle of files that import each other: not at the top, not for typing, not inside functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.sources import tree

PACKAGE = Path(__file__).parents[2] / "vramplan"

Edges = Mapping[str, set[str]]


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def asked_by(module: str, source: ast.Module, modules: set[str], *, is_package: bool = False) -> set[str]:
    """The modules that a file names in an import statement, wherever it stands: also for typing or in a function.

    `from a import b` means the module `a.b` where there is one, else `a`. What is imported by the text of its name, as
    a registry does, is no statement and does not count.
    """
    found: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names if one.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, *([base] if base else [])])
            names = (f"{base}.{one.name}" for one in node.names)
            found.update(name if name in modules else base for name in names if name in modules or base in modules)
    return found - {module}


def circles(edges: Edges) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm), each sorted by name."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    waiting: list[str] = []
    found: list[list[str]] = []
    for root in edges:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        waiting.append(root)
        path: list[tuple[str, Iterator[str]]] = [(root, iter(sorted(edges[root])))]
        while path:
            module, rest = path[-1]
            below = next(rest, None)
            if below is not None and below not in number:
                number[below] = low[below] = len(number)
                waiting.append(below)
                path.append((below, iter(sorted(edges.get(below, ())))))
            elif below is not None:
                if below in waiting:
                    low[module] = min(low[module], number[below])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[module])
                if low[module] == number[module]:
                    at = waiting.index(module)
                    component, waiting[at:] = waiting[at:], []
                    if len(component) > 1:
                        found.append(sorted(component))
    return found


def imports_of_the_package() -> dict[str, set[str]]:
    """Which modules of vramplan each of them names."""
    files = {module_of(path): path for path in PACKAGE.rglob("*.py")}
    return {
        module: asked_by(module, tree(path), set(files), is_package=path.name == "__init__.py")
        for module, path in files.items()
    }


@pytest.mark.contract
def test_no_file_imports_a_file_that_leads_back_to_it() -> None:
    edges = imports_of_the_package()
    assert len(edges) > 300  # else this looks at the wrong folder
    assert circles(edges) == []


@pytest.mark.contract
@pytest.mark.parametrize(
    "source",
    [
        "from vramplan.b import name",
        "from vramplan import b",
        "import vramplan.b",
        "from .b import name",
        "from . import b",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vramplan.b import name",
        "def f():\n    from vramplan.b import name",
        "class C:\n    def f(self):\n        if self:\n            from vramplan import b",
    ],
)
def test_every_kind_of_import_counts(source: str) -> None:
    modules = {"vramplan", "vramplan.a", "vramplan.b"}
    assert asked_by("vramplan.a", ast.parse(source), modules) == {"vramplan.b"}


@pytest.mark.contract
def test_a_circle_is_found_and_a_diamond_is_none() -> None:
    diamond = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}
    assert circles(diamond) == []
    assert circles({**diamond, "d": {"e"}, "e": {"b"}}) == [["b", "d", "e"]]
