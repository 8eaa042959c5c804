"""Whether the tests of a script hold, and which commands of a list with `&&` and `||` run.

Source: GNU Bash 5.2, the manual, "Lists of Commands", "Conditional Constructs" and "Bash Conditional Expressions".
"""

from __future__ import annotations

import operator
import re

from vramplan.configs.shell.scanning import JOINS, ShellWord

OF_FILES = ("-f", "-e", "-s", "-r", "-d", "-x", "-w", "-L", "-h")
"""What asks about a file; nobody looks."""


def holds(texts: list[str]) -> bool:
    """Whether a test of these words holds, without its brackets."""
    for sign, join in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if sign in texts:
            parts: list[list[str]] = [[]]
            for text in texts:
                if text == sign:
                    parts.append([])
                else:
                    parts[-1].append(text)
            return join(holds(part) for part in parts)
    if texts and texts[0] == "!":
        return not holds(texts[1:])
    if texts and texts[0] in ("command", "which", "hash"):
        return True  # `command -v nvidia-smi`: a machine that trains has it
    return _single([text for text in texts if text not in ("(", ")")])


def _matches(text: str, pattern: str) -> bool:
    """Whether a text holds a pattern of `=~`, whose extended expressions Python reads too, but for named classes."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False


def _single(texts: list[str]) -> bool:
    if not texts:
        return False
    if texts[0] == "-n":
        return len(texts) > 1 and texts[1] != ""
    if texts[0] == "-z":
        return len(texts) < 2 or texts[1] == ""
    if texts[0].startswith("-") and len(texts) <= 2 and len(texts[0]) == 2:
        return False  # files: nobody looks
    if len(texts) == 1:
        return texts[0] not in ("", "false")
    if len(texts) == 2:
        texts = ["", *texts] if texts[0] in ("==", "=", "!=") else [*texts, ""]
    left, sign, right = texts[0], texts[1], texts[2]
    if sign in ("==", "="):
        return re.fullmatch(re.escape(right).replace(r"\*", ".*"), left) is not None
    if sign == "!=":
        return left != right
    if sign == "=~":
        return _matches(left, right)
    numbers = {"-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt}
    numbers |= {"-ge": operator.ge, "-lt": operator.lt, "-le": operator.le}
    if sign in numbers:
        try:
            return bool(numbers[sign](int(left or 0), int(right or 0)))
        except ValueError:
            return False
    return False


def without_join(words: list[ShellWord]) -> tuple[list[ShellWord], str]:
    """A statement without the sign that joins the next one to it, and that sign."""
    joined = len(words) > 1 and words[-1].text in JOINS
    return (words[:-1], words[-1].text) if joined else (words, "")


class CommandList:
    """Goes through the commands of lists, as `TEST && A || B` and `TEST && { A; B; }`."""

    def __init__(self) -> None:
        self.ended: bool | None = True
        """How the last command ended; None where nobody knows, and everything behind it runs."""

        self.sign = ""
        self.needs: set[str] = set()
        """The variables that nothing sets and that tests of this list need."""

        self.left_out = False
        """Whether the commands of a group are left out, up to its end."""

    def runs(self) -> bool:
        """Whether the next command runs."""
        return not self.sign or self.ended is None or (self.sign == "&&") == self.ended

    def goes_on(self, ended: bool | None, sign: str, needs: set[str]) -> None:
        """Note how a command ended and what joins the next one to it."""
        self.ended, self.sign = ended, sign
        self.needs = self.needs | needs if sign else set()
