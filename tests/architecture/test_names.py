"""A name of a class has one meaning, so that a search for it finds one thing."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.sources import tree

VRAMPLAN = Path(__file__).resolve().parents[2] / "vramplan"
MODELS = "replay/models"
"""Each file there has the names of the model's original: every one has a Block."""


def is_of_a_model(file: Path) -> bool:
    """Whether a file has a model, or blocks of one, in the words of the original."""
    place = file.relative_to(VRAMPLAN)
    return place.as_posix().startswith(MODELS) or (place.parts[0] == "engines" and has_blocks(file))


def has_blocks(file: Path) -> bool:
    """Whether it defines a part that models are made of."""
    return bool({"Attention", "Block"} & set(classes(file)))


def classes(file: Path) -> list[str]:
    """The classes on the top level of a file."""
    return [node.name for node in tree(file).body if isinstance(node, ast.ClassDef)]


@pytest.mark.contract
def test_no_two_classes_have_one_name() -> None:
    files = [file for file in VRAMPLAN.rglob("*.py") if not is_of_a_model(file)]
    counts = Counter(name for file in files for name in classes(file))
    assert {name: count for name, count in counts.items() if count > 1} == {}
