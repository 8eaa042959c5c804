"""What only some jobs need is imported on demand: the table for a run says what the imports for typing say."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from vramplan.engines import imported
from vramplan.job import on_demand

pytestmark = pytest.mark.contract


def test_the_table_for_a_run_has_the_names_of_the_imports_for_typing() -> None:
    tree = ast.parse(Path(on_demand.__file__).read_text("utf-8"))
    typed = {
        one.name: f"{node.module}:{one.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    assert typed == on_demand.ADDRESSES


@pytest.mark.parametrize("name", on_demand.ADDRESSES)
def test_every_name_of_the_table_is_found(name: str) -> None:
    assert getattr(on_demand, name) is imported(on_demand.ADDRESSES[name])


def test_a_name_that_the_table_lacks_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        getattr(on_demand, "check_nothing")  # noqa: B009 - a type checker knows that it is not there
