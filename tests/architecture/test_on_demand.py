"""What only some jobs need is imported on demand: the table for a run says what the imports for typing say."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

from vramplan.answers import on_demand as of_answers
from vramplan.engines import imported
from vramplan.job import on_demand as of_jobs
from vramplan.planner import on_demand as of_verdicts
from vramplan.report import on_demand as of_reports

pytestmark = pytest.mark.contract

ROOMS = (of_jobs, of_verdicts, of_answers, of_reports)
NAMES = [(room, name, f"{module}:{name}") for room in ROOMS for module, names in room.MODULES.items() for name in names]


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.__name__))
def test_the_table_for_a_run_has_the_names_of_the_imports_for_typing(room: ModuleType) -> None:
    tree = ast.parse(Path(str(room.__file__)).read_text("utf-8"))
    typed = {
        one.name: f"{node.module}:{one.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
    assert typed == {name: address for of, name, address in NAMES if of is room}


@pytest.mark.parametrize(("room", "name", "address"), NAMES, ids=[address for *_, address in NAMES])
def test_every_name_of_the_table_is_found(room: ModuleType, name: str, address: str) -> None:
    assert getattr(room, name) is imported(address)


def test_a_name_that_the_table_lacks_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'check_nothing'"):
        getattr(of_jobs, "check_nothing")  # noqa: B009 - a type checker knows that it is not there
