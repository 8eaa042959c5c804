"""Every key of a job, once. The order is that of the echoed job; the sections are those of the help and of the docs."""

from __future__ import annotations

from functools import cache
from typing import Any

from vramplan.options.option import Option
from vramplan.options.spellings import meaning
from vramplan.options.table.parallel import MAX_DEVICES, PARALLEL_ROWS, ZERO
from vramplan.options.table.run import ADVICE_ROWS, RUN_ROWS, TEXTBOOK_ROWS
from vramplan.options.table.sections import PANELS, RUN, SECTIONS
from vramplan.options.table.step import FORWARD_ROWS, NUMBER_ROWS
from vramplan.options.table.subject import BATCH_ROWS, MACHINE_ROWS, SUBJECT_ROWS
from vramplan.options.table.trained import TRAINED_ROWS

__all__ = (
    "GROUPS",
    "HEADS",
    "MAX_DEVICES",
    "PANELS",
    "RUN",
    "SECTIONS",
    "TABLE",
    "ZERO",
    "absent",
    "find",
    "has_the_word",
    "inside",
    "named_by_flag",
    "nullable_last",
    "of_one_runtime",
    "panel_of",
    "parameters",
    "profile_fields",
    "switches_of_zero",
)

HEADS = {"adapter": "kind", "qat": "weights"}
"""Keys that may be a word: the key inside the mapping that the word stands for."""

GROUPS = ("parallel", *HEADS)
"""Keys whose value is a mapping of keys of their own."""

TABLE = (
    *SUBJECT_ROWS,
    *BATCH_ROWS,
    *NUMBER_ROWS,
    *FORWARD_ROWS,
    *TRAINED_ROWS,
    *TEXTBOOK_ROWS,
    *PARALLEL_ROWS,
    *MACHINE_ROWS,
    *RUN_ROWS,
    *ADVICE_ROWS,
)


@cache
def _by_key() -> dict[str, Option]:
    return {option.key: option for option in TABLE}


def find(key: str) -> Option:
    """The row of a key such as `parallel.data`. Raises KeyError."""
    return _by_key()[key]


def has_the_word(text: str) -> Option | None:
    """The one key that has a text among its words or other spellings of them; None where none or several do.

    `lisa` and `lisa:2` are the word `lisa:N`.
    """
    having = [one for one in TABLE if _is_word(text, one)]
    return having[0] if len(having) == 1 else None


def _is_word(text: str, option: Option) -> bool:
    if text in option.words or meaning(text, option.words, option.spellings) is not None:
        return True
    head = text.partition(":")[0]
    return any(word.partition(":")[0] == head for word in option.words if ":" in word)


def named_by_flag(name: str) -> Option | None:
    """The row whose option on the command line has this name, ours or another program's, with underscores or dashes."""
    flag = "--" + name.replace("_", "-")
    return next((option for option in TABLE if flag in option.options or flag in option.also), None)


@cache
def inside(group: str = "") -> dict[str, Option]:
    """The rows of a mapping by their names in it: of one of `GROUPS`, or of the job itself."""
    return {option.name: option for option in TABLE if option.group == group}


@cache
def nullable_last(group: str = "") -> tuple[tuple[str, Option], ...]:
    """The rows of `inside` with their names, those whose null is a choice of its own last."""
    return tuple(sorted(inside(group).items(), key=lambda one: one[1].nullable))


@cache
def of_one_runtime() -> tuple[Option, ...]:
    """The rows that belong to one runtime each."""
    return tuple(option for option in TABLE if option.only is not None)


@cache
def switches_of_zero() -> frozenset[str]:
    """The names in `parallel` that belong to a stage of ZeRO."""
    return frozenset(name for name, option in inside("parallel").items() if not set(ZERO).isdisjoint(option.sharding))


def panel_of(option: Option) -> str:
    """The heading of the help under which an option stands."""
    return option.panel or next(panel for panel, sections in PANELS.items() if option.section in sections)


@cache
def absent() -> dict[str, Any]:
    """What the draft of a job has where every key is left out, by attribute. Not to be changed."""
    return {option.attribute: option.absent for option in TABLE if option.attribute}


@cache
def parameters() -> dict[str, Option]:
    """The rows that have options on the command line, section by section, by the name of the parameter."""
    return {
        option.parameter: option
        for section in SECTIONS
        for option in TABLE
        if option.section == section and option.options
    }


@cache
def profile_fields() -> dict[str, Option]:
    """The fields of runtime profiles that hold defaults for keys, and the rows of the keys."""
    return {field: option for option in TABLE for field in option.profile}
