"""Every operator rule says what it saves and why, and where it was read; the page of all rules is current."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from tests.docs.operators import PAGE, page
from vramplan.answers.explanation import all_rules
from vramplan.engines import engine_of, names
from vramplan.replay.rules import is_rule, public_name, read, rooms, rules_of

PACKAGE = Path(__file__).resolve().parents[2] / "vramplan"
# what other rules are made of, and what is no operator
HELPERS = {"broadcast", "same", "neg", "cross_entropy", "rounded", "sorting_bytes", "embedding", "rows_of_table"}


@pytest.mark.parametrize(
    "room",
    [
        room
        for room in rooms()
        if room.rpartition(".")[2] in ("elementwise", "products", "normalised", "ends", "views", "attention")
    ],
)
def test_every_public_function_of_the_operators_is_a_rule(room: str) -> None:
    module = import_module(room)
    public = {
        name
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == room and not name.startswith("_")
    }
    assert {name for name in public if not is_rule(getattr(module, name))} <= HELPERS


@pytest.mark.parametrize("room", rooms())
def test_everything_that_allocates_is_part_of_a_rule(room: str) -> None:
    """A function that calls tape.new, several, like or workspace is a rule, or private and called by one."""
    source = Path(inspect.getsourcefile(import_module(room)) or "").read_text("utf-8")
    rules = {function.__name__ for function in rules_of(import_module(room))}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name in rules:
            continue
        calls = {
            call.func.attr
            for call in ast.walk(node)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        }
        if calls & {"new", "several", "like", "workspace"}:
            assert node.name.startswith("_"), node.name


def test_every_rule_has_a_summary_and_a_source() -> None:
    for rule in all_rules().values():
        assert rule.summary.endswith("."), rule.name
        assert rule.source, rule.name
        assert not rule.source.endswith("."), rule.name
        assert all(why for _, why in rule.saves), rule.name


def test_labels_are_read_apart() -> None:
    def rule() -> None:
        """A summary: new.

        A detail that goes
        on.
        Saves `x`: its gradient needs
        it.
        Backward: 1 new.
        Source: a file.
        """

    found = read(rule)
    assert found.summary == "A summary: new."
    assert found.details == ("A detail that goes on.",)
    assert found.saves == (("x", "its gradient needs it"),)
    assert found.backward == "1 new."
    assert found.source == "a file"


@pytest.mark.snapshot
def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.docs.operators"


def test_every_file_of_operators_is_a_room_of_rules() -> None:
    folder = Path(inspect.getsourcefile(import_module("vramplan.replay.operators")) or "").parent
    files = {f"vramplan.replay.operators.{file.stem}" for file in folder.glob("[a-z]*.py")}
    assert files - {*rooms()} == set()


def test_no_engine_names_its_own_code_as_a_shared_model() -> None:
    """What is told as `bert.Bert.embed` is looked for by that name."""
    shared = {file.stem for file in (PACKAGE / "replay" / "models").glob("[a-z]*.py")}
    own = {module for name in names() for module in engine_of(name).families.values()}
    assert not sorted(module for module in own if public_name(module) in shared)
