"""Values as they stand in files, and references between them as OmegaConf has them: `${a.b}`, functions of numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.tuples import NamedTuple


class Again(NamedTuple):
    """A key that a file has twice: where the last stands, which counts, and the one before it."""

    key: str
    line: int | None
    replaced_line: int | None


class Written(NamedTuple):
    """A value as it stands in a file: plain Python, and where. `again`: it replaces one of the same key."""

    value: Any
    file: str | None = None
    line: int | None = None
    column: int | None = None
    again: Again | None = None


_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_RESOLVER = re.compile(r"\$\{(\w+): *(-?[\d.]+), *(-?[\d.]+)\}")
RESOLVERS: dict[str, Callable[[float, float], float]] = {
    "multiply": lambda one, other: one * other,
    "sum": lambda one, other: one + other,
    "divide": lambda one, other: one / other,
    "divide_ceil": lambda one, other: math.ceil(one / other),
    "divide_floor": lambda one, other: math.floor(one / other),
    "int_div": lambda one, other: one // other,
    "subtract": lambda one, other: one - other,
}
"""What NeMo's launcher registers with OmegaConf (NVIDIA/NeMo-Framework-Launcher, launcher_scripts/main.py), and the
last two of NeMo-Aligner's scripts (NVIDIA/NeMo-Aligner 0.7, examples/nlp/gpt/train_gpt_ppo_actor.py)."""


_DEFAULTED = re.compile(r"\$\{(?:oc\.env: *\w+ *, *|\w+:?-)([^${}]*)\}")
"""A variable of the environment with what stands in its place, as OmegaConf and as a shell has it."""


def referred(written: Mapping[str, Written]) -> frozenset[str]:
    """Keys that other values of OmegaConf refer to: `${data_dir}` of a program's own file is a variable."""
    texts = [str(item.value) for item in written.values() if "${" in str(item.value)]
    return frozenset(name for text in texts for name in _REFERENCE.findall(text))


LONGEST = 100_000  # characters of a value with what it refers to, as references of references grow fast


def interpolated(written: Mapping[str, Written]) -> dict[str, Written]:
    """`${a.b}` of OmegaConf replaced by what stands there; what is not there stays as it is written.

    A variable of the environment that has a default is that.
    """
    result = dict(written)
    for _ in range(8):  # a reference to a reference; a circle ends here too
        changed = False
        for key, item in result.items():
            if not isinstance(item.value, str) or "${" not in item.value:
                continue
            item = item._replace(value=_absolute(item.value, key))
            whole = _REFERENCE.fullmatch(item.value)
            named = _place_of(result, whole[1]) if whole else None
            if named is not None and named != key:
                result[key] = item._replace(value=result[named].value)
                changed = True
                continue
            spelled = [_spelled(result, match) for match in _REFERENCE.finditer(item.value)]
            if len(item.value) + sum(map(len, spelled)) > LONGEST:
                continue
            text = _REFERENCE.sub(lambda match: _spelled(result, match), item.value)
            text = _DEFAULTED.sub(lambda match: match[1].strip(" \"'"), _RESOLVER.sub(_resolved, text))
            if text != item.value:
                result[key] = item._replace(value=text)
                changed = True
        if not changed:
            break
    return result


def _absolute(text: str, key: str) -> str:
    """`${.x}` beside `a.b` is `${a.x}`, and `${..x}` is one level above."""

    def resolved(match: re.Match[str]) -> str:
        above = key.split(".")[: -len(match[1])]
        return "${" + ".".join([*above, match[2]]) + "}"

    return re.sub(r"\$\{(\.+)([A-Za-z_][\w.]*)\}", resolved, text)


def _place_of(written: Mapping[str, Written], name: str) -> str | None:
    """The key that a reference names; a file of a group that is composed with others names itself by that group."""
    inside = name.partition(".")[2]
    return name if name in written else inside if inside in written else None


def _resolved(match: re.Match[str]) -> str:
    """What a function of two numbers gives; one that is not known stays as it is written."""
    function = RESOLVERS.get(match[1])
    try:
        return match[0] if function is None else f"{function(float(match[2]), float(match[3])):.12g}"
    except (ValueError, ZeroDivisionError):
        return match[0]


def _spelled(written: Mapping[str, Written], match: re.Match[str]) -> str:
    found = written.get(_place_of(written, match[1]) or "")
    return match[0] if found is None or found.value is None else str(found.value)
