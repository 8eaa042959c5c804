"""What a script runs, as reading it finds out, and its functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from vramplan.configs.shell.expanding import Argument
from vramplan.configs.shell.scanning import ShellWord


@dataclass
class Script:
    """What a script runs."""

    launcher: list[Argument] = field(default_factory=list)
    program: Argument | None = None
    arguments: list[Argument] = field(default_factory=list)
    values: dict[str, list[Argument]] = field(default_factory=dict)
    """Variables as they are where the program starts; as the script leaves them where it starts none."""

    runs: dict[int, str] = field(default_factory=dict)
    """Programs with many arguments or with a file of them that the script starts, by their line."""

    loops: dict[str, list[str]] = field(default_factory=dict)
    """Variables of loops, and the values that they take, of which the first is read."""

    notes: list[str] = field(default_factory=list)
    commands: list[list[Argument]] = field(default_factory=list)
    """All that the script runs, in its order."""

    held: list[dict[str, list[Argument]]] = field(default_factory=list)
    """Variables as they are where each of these runs."""

    empty: list[str] = field(default_factory=list)
    """Variables that nothing sets, where arguments were expected."""

    files: dict[str, str] = field(default_factory=dict)
    """Files that the script writes, with their text."""

    skipped: dict[str, set[str]] = field(default_factory=dict)
    """Options in variables that branches set which are not taken."""

    supposed: set[tuple[str, str]] = field(default_factory=set)
    """Variables of the command that a branch sets, each with one that its test needs and that nothing sets."""

    cut_off: list[Argument] = field(default_factory=list)
    """Options behind the command that begin a command of their own: a comment or a line's end stands before them."""

    @property
    def undecided(self) -> list[str]:
        """Options that only the caller decides: of variables that nothing sets but a branch that is not taken."""
        return sorted({option for name in self.empty for option in self.skipped.get(name, ())})


def apart_from_functions(
    statements: list[list[ShellWord]],
) -> tuple[list[list[ShellWord]], dict[str, list[list[ShellWord]]]]:
    """The statements without the functions that some of them call with arguments, and those functions."""
    found: dict[str, list[list[ShellWord]]] = {}
    kept: list[tuple[list[ShellWord], str]] = []
    name, depth = "", 0
    for words in statements:
        texts = [word.text for word in words]
        if not name:
            head = texts[1:] if texts[0] == "function" else texts
            plain = [text for text in head if text not in ("(", ")")]
            if (
                plain
                and re.fullmatch(r"\w+", plain[0])
                and plain[1:2] in ([], ["{"])
                and (texts[0] == "function" or head[1:3] == ["(", ")"])
            ):
                name, depth = plain[0], 0
                found[name] = []
        if name:
            kept.append((words, name))
            depth += texts.count("{")
            depth -= texts[0] == "}"
            body = words[texts.index("{") + 1 :] if not found[name] and "{" in texts and texts[0] != "{" else words
            found[name].append(body)
            if depth <= 0 and texts[0] == "}":
                name = ""
        else:
            kept.append((words, ""))
    called = {words[0].text for words, _ in kept if len(words) > 1 and words[0].text in found and words[1].text != "("}
    left = [words for words, inside in kept if inside not in called]
    return left, {at: [words for words in found[at] if words and words[0].text not in "{}"] for at in called}


def whole(word: ShellWord) -> str:
    """A word as it stands, with the items of an array."""
    return word.text if word.items is None else word.text + " ".join(map(whole, word.items))


def placed(word: ShellWord, line: int) -> ShellWord:
    """A word of another script, at the line that calls it."""
    items = None if word.items is None else tuple(placed(item, line) for item in word.items)
    return word._replace(line=line, items=items)
