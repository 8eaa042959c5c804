"""Named tuples that are made quickly are those of `typing`."""

from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest

from vramplan import tuples

pytestmark = pytest.mark.contract

BODY = '''
class Point(NamedTuple):
    """A place."""

    x: int
    y: "int | None"
    name: str = "here"

    @property
    def far(self) -> bool:
        return self.x > 9

    def moved(self, by: int) -> "Point":
        return self._replace(x=self.x + by)
'''


def made_with(named_tuple: Any) -> Any:
    names: dict[str, Any] = {"NamedTuple": named_tuple, "__name__": __name__}
    exec(BODY, names)
    return names["Point"]


Point = made_with(tuples.NamedTuple)


def test_it_has_what_typing_gives_it() -> None:
    theirs = made_with(typing.NamedTuple)
    assert {name for name in vars(theirs) if name != "__orig_bases__"} <= set(dir(Point))
    assert not hasattr(Point(1, 2), "__dict__")
    for name in ("_fields", "_field_defaults", "__doc__", "__module__", "__qualname__", "__match_args__"):
        assert getattr(Point, name) == getattr(theirs, name), name
    assert list(Point.__annotations__) == list(theirs.__annotations__)
    assert typing.get_type_hints(Point) == typing.get_type_hints(theirs)


def test_its_values_behave_as_tuples_with_names() -> None:
    here = Point(1, y=None)
    assert here == (1, None, "here")
    assert (here.moved(9).far, here.far) == (True, False)
    assert repr(here) == "Point(x=1, y=None, name='here')"
    assert pickle.loads(pickle.dumps(here)) == here == copy.copy(here)
    with pytest.raises(TypeError):
        Point(1)
    assert here._replace(name="there", x=2) == Point(2, None, "there")
    with pytest.raises(ValueError, match=r"unexpected field names: \['z', 'far'\]"):
        here._replace(x=2, z=3, far=4)


def test_what_is_no_plain_body_is_refused_as_typing_does() -> None:
    with pytest.raises(TypeError, match="without a default"):
        exec(
            "class Wrong(NamedTuple):\n    x: int = 1\n    y: int\n",
            {"NamedTuple": tuples.NamedTuple, "__name__": "own"},
        )
