"""The text of a configuration file: settings in their order, each with a comment, in the form of the program.

A page is what a writer fills, as a `Sheet` is what a reader takes from: dotted keys, each once.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vramplan.tuples import NamedTuple

YOURS = "yours to choose"
YAML, JSON, TOML, SHELL = "yaml", "json", "toml", "shell"

_PLAIN = re.compile(r"[A-Za-z_/.][\w./@+-]*( [\w./@+-]+)*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "none", "y", "n", "~", ".", ".inf", ".nan"))


class SettingLine(NamedTuple):
    """One setting. `of`: the keys of the job that it expresses. `note`: what a person should know of it."""

    key: str
    value: Any
    of: tuple[str, ...]
    note: str = ""


class Page:
    """One file: its name, its form, and its settings."""

    def __init__(self, name: str, form: str = YAML, program: str = "") -> None:
        """`program`: of a shell script, what is launched with the settings."""
        self.name, self.form, self.program = name, form, program
        self.lines: dict[str, SettingLine] = {}

    def put(self, key: str, value: Any, *of: str, note: str = "") -> None:
        """Write a setting; a later one of the same key takes its value and adds what it expresses."""
        before = self.lines.get(key)
        told = of if before is None else tuple(dict.fromkeys((*before.of, *of)))
        self.lines[key] = SettingLine(key, value, told, note or (before.note if before else ""))

    def yours(self, key: str, value: Any) -> None:
        """Write a setting that no job has, and that the program wants all the same."""
        self.put(key, value, note=YOURS)

    def left_to_you(self) -> tuple[str, ...]:
        """The settings that are yours to choose, for the first lines of the file: one line, or none."""
        keys = ", ".join(line.key for line in self.lines.values() if line.note == YOURS)
        return (f"{YOURS}: {keys}",) if keys else ()

    def text(self, header: Sequence[str], comment: Callable[[SettingLine], str]) -> str:
        """The file. `header`: its first lines, as comments; `comment`: what stands behind a setting."""
        return _FORMS[self.form](self, header, comment)


def _yaml(page: Page, header: Sequence[str], comment: Callable[[SettingLine], str]) -> str:
    return "\n".join([*_comments(header), *_yaml_lines(page.lines.values(), comment)]) + "\n"


def _yaml_lines(lines: Iterable[SettingLine], comment: Callable[[SettingLine], str]) -> list[str]:
    result: list[str] = []
    opened: list[str] = []
    for line in _together(lines):
        *above, last = line.key.split(".")
        same = 0
        while same < min(len(above), len(opened)) and above[same] == opened[same]:
            same += 1
        for depth in range(same, len(above)):
            result.append("  " * depth + f"{above[depth]}:")
        opened = above
        result.append(_behind("  " * len(above) + f"{last}: {scalar(line.value)}", comment(line)))
    return result


def _together(lines: Iterable[SettingLine]) -> list[SettingLine]:
    """The settings with those of one mapping behind each other, in the place of its first."""
    order: dict[str, int] = {}
    for line in lines:
        parts = line.key.split(".")
        for length in range(1, len(parts) + 1):
            order.setdefault(".".join(parts[:length]), len(order))
    return sorted(lines, key=lambda line: [order[line.key[:at]] for at in _ends(line.key)])


def _ends(key: str) -> list[int]:
    return [*(found.start() for found in re.finditer(r"\.", key)), len(key)]


def scalar(value: Any) -> str:
    """A value in YAML, on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(scalar, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {scalar(item)}" for key, item in value.items()) + "}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text)


def _json(page: Page, header: Sequence[str], comment: Callable[[SettingLine], str]) -> str:
    result: dict[str, Any] = {}
    for line in page.lines.values():
        *above, last = line.key.split(".")
        place = result
        for part in above:
            place = place.setdefault(part, {})
        place[last] = line.value
    return json.dumps(result, indent=2) + "\n"


def _toml(page: Page, header: Sequence[str], comment: Callable[[SettingLine], str]) -> str:
    result = _comments(header)
    table = None
    for line in _together(page.lines.values()):
        name, _, key = line.key.rpartition(".")
        if name != table:
            result += ["", f"[{name}]"]
            table = name
        result.append(_behind(f"{key} = {json.dumps(line.value)}", comment(line)))
    return "\n".join(result) + "\n"


def _shell(page: Page, header: Sequence[str], comment: Callable[[SettingLine], str]) -> str:
    result = ["#!/bin/bash", *_comments(header), "ARGUMENTS=("]
    for line in page.lines.values():
        words = [f"--{line.key.replace('_', '-')}"]
        if line.value is not True:
            words.append(shlex.quote(str(line.value)))
        result.append(_behind("    " + " ".join(words), comment(line)))
    return "\n".join([*result, ")", f'{page.program} "${{ARGUMENTS[@]}}"']) + "\n"


def _comments(lines: Sequence[str]) -> list[str]:
    return [f"# {line}".rstrip() for line in lines]


def _behind(text: str, comment: str) -> str:
    return f"{text}  # {comment}" if comment else text


_FORMS: dict[str, Callable[[Page, Sequence[str], Callable[[SettingLine], str]], str]] = {
    YAML: _yaml,
    JSON: _json,
    TOML: _toml,
    SHELL: _shell,
}
