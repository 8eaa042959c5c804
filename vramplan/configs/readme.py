"""The commands on a page that tells how a program is used: blocks of a shell between its words; nothing is run.

The first block with a command that trains is the script, with the variables that blocks before it set. Each line keeps
its place in the file.

Source: CommonMark 0.31.2, section 4.5, fenced code blocks (the info string names the language).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vramplan.tuples import NamedTuple

FENCE = re.compile(r"(?P<indent>\s*)(?P<mark>```+|~~~+)\s*(?P<language>[\w+-]*)[^`]*")
OF_A_SHELL = ("", "bash", "sh", "shell", "zsh", "console", "shell-session", "text")
ASSIGNS = re.compile(r"(export\s+)?\w+=\S*\s*(#.*)?")
PROMPT = re.compile(r"^\s*\$ ")
Trains = Callable[[str], bool]
"""Whether the text of a block has a command of a program whose commands are read."""


class CodeBlock(NamedTuple):
    """A block of a page: the number of its first line, and its lines."""

    first: int
    lines: list[str]


def script(text: str, trains: Trains) -> str | None:
    """The script of a page; None where no block trains."""
    blocks = _blocks(text)
    chosen = next((place for place, block in enumerate(blocks) if trains(_joined(block))), None)
    if chosen is None:
        return None
    rows = [""] * (len(text.splitlines()) + 1)
    for place, block in enumerate(blocks[: chosen + 1]):
        for number, line in enumerate(block.lines, block.first):
            if place == chosen or ASSIGNS.fullmatch(line.strip()):
                rows[number - 1] = PROMPT.sub("", line)
    return "\n".join(rows) + "\n"


def others(text: str, trains: Trains) -> str | None:
    """What to say of a page with more than one block that trains."""
    lines = [str(block.first) for block in _blocks(text) if trains(_joined(block))]
    if len(lines) < 2:
        return None
    return f"the page has other commands from lines {', '.join(lines[1:])} on; those from line {lines[0]} on are read"


def _joined(block: CodeBlock) -> str:
    return "\n".join(PROMPT.sub("", line) for line in block.lines) + "\n"


def _blocks(text: str) -> list[CodeBlock]:
    """The blocks that are of a shell, or of no language."""
    found: list[CodeBlock] = []
    mark, kept, block = "", False, CodeBlock(0, [])
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.fullmatch(line)
        if not mark and fence is not None:
            mark, kept = fence["mark"], fence["language"].lower() in OF_A_SHELL
            block = CodeBlock(number + 1, [])
        elif mark and line.strip().startswith(mark) and not line.strip().strip(mark[0]):
            found += [block] * kept
            mark = ""
        elif mark:
            block.lines.append(line)
    return found
