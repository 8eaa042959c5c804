"""Loops of a script over the arguments that it is called with.

Source: GNU Bash 5.2, the manual, "Looping Constructs" and "Special Parameters".
"""

from __future__ import annotations

import re

from vramplan.configs.shell.scanning import ShellWord

_OPEN = ("while", "until", "for", "select")
_ARGUMENTS = re.compile(r"\"?\$\{?[@*]\}?\"?")
_NUMBER = re.compile(r"\$#|\$\{#\}")
_LEFT = re.compile(rf"{_NUMBER.pattern}|\$\{{?1\b")


def is_over_arguments(words: list[ShellWord]) -> bool:
    """Whether a statement begins a loop that ends with the last argument."""
    if words[0].text == "while":
        return any(_LEFT.search(word.text) for word in words)
    over = [word.text for word in words[2:4]]
    return words[0].text == "for" and len(over) == 2 and over[0] == "in" and bool(_ARGUMENTS.fullmatch(over[1]))


def counted(words: list[ShellWord], count: int) -> list[ShellWord]:
    """The words of a test with the number of arguments for `$#`."""
    return [word._replace(text=_NUMBER.sub(str(count), word.text)) for word in words]


def body_of(statements: list[list[ShellWord]], at: int) -> tuple[list[list[ShellWord]], int]:
    """The statements of a loop whose head stands before `at`, and the place behind its `done`."""
    body: list[list[ShellWord]] = []
    depth = 1
    for place in range(at, len(statements)):
        words = statements[place]
        words = words[1:] if words[0].text == "do" else words
        head = words[0].text if words else ""
        depth += (head in _OPEN) - (head == "done")
        if depth == 0:
            return body, place + 1
        if words:
            body.append(words)
    return body, len(statements)
