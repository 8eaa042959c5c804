"""Which cases of a sweep everybody runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sweeps import draw_less, left_out


def items(of: dict[str, tuple[int, tuple[int, ...]] | None]) -> list[Any]:
    """Cases of tests, each with how many it has and the arguments of its mark."""
    found = []
    for name, sweep in of.items():
        count, arguments = sweep or (3, ())
        mark = None if sweep is None else SimpleNamespace(args=arguments)
        found += [
            SimpleNamespace(nodeid=f"tests/x.py::{name}[{number}]", get_closest_marker=lambda _, mark=mark: mark)
            for number in range(count)
        ]
    return found


def config(*args: str, whole: bool = False, profile: str = "everybody") -> Any:
    options = {"--whole": whole, "--hypothesis-profile": profile}
    return SimpleNamespace(args=args, getoption=lambda name, default=None: options.get(name, default))


SWEEPS = {"plain": None, "words": (10, (4,)), "few": (2, (4,)), "long": (1, ())}


def test_one_case_in_so_many_is_run_and_one_at_least() -> None:
    apart = left_out(config("tests"), items(SWEEPS))
    names = [item.nodeid.partition("::")[2].partition("[")[0] for item in apart]
    assert {name: names.count(name) for name in SWEEPS} == {"plain": 0, "words": 7, "few": 1, "long": 1}


def test_the_cases_do_not_depend_on_their_order() -> None:
    drawn = items(SWEEPS)
    first, second = ({item.nodeid for item in left_out(config("tests"), order)} for order in (drawn, drawn[::-1]))
    assert first == second


@pytest.mark.parametrize(
    "asked", [config("tests", whole=True), config("tests/x.py::words"), config("tests", profile="exploring")]
)
def test_all_are_run_where_all_are_asked_for(asked: Any) -> None:
    assert left_out(asked, items(SWEEPS)) == []


def drawn(asked: Any, one_in: int | None) -> list[int]:
    """What a property draws that would draw twenty examples, and has one that is kept."""
    numbers: list[int] = []

    def noted(number: int) -> None:
        numbers.append(number)

    prop = settings(max_examples=20)(example(number=-1)(given(number=st.integers(0))(noted)))
    mark = None if one_in is None else SimpleNamespace(args=(one_in,))
    item: Any = SimpleNamespace(nodeid="tests/x.py::noted", obj=prop, get_closest_marker=lambda _: mark)
    assert left_out(asked, [item]) == []
    draw_less(asked, [item, item])  # as it has two cases of another parameter
    prop()
    return numbers


def test_of_a_property_fewer_examples_are_drawn_and_those_the_same() -> None:
    everything = drawn(config("tests", whole=True), 3)
    assert len(everything) == 21
    assert drawn(config("tests"), 3) == everything[:8]
    assert drawn(config("tests"), None) == drawn(config("tests/x.py::noted"), 3) == everything
