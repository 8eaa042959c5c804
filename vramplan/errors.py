"""Every error a user can cause. A traceback means a bug in vramplan.

VramplanError
    InputError         bad input; carries every Problem that was found; exit code 2
        UsageError     options that contradict each other, or a value that means nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vramplan.tuples import NamedTuple


class Problem(NamedTuple):
    """One thing that is wrong with the input, where it is, and what to do about it."""

    message: str
    key: str | None = None
    hint: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ""
        if self.file is not None:
            place = self.file
            if self.line is not None:
                place += f":{self.line}"
                if self.column is not None:
                    place += f":{self.column}"
            place += ": "
        key = f"{self.key}: " if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{key}{self.message}{hint}"


class VramplanError(Exception):
    """`str(error)` is the complete message shown to the user."""


class InputError(VramplanError):
    """Bad input. All problems of a file come at once, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(problems))  # each once: several lookups may meet the same one
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(InputError):
    """One problem with an option or with a combination of options."""

    def __init__(self, message: str, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__([Problem(message, key=key, hint=hint)])


MOST_NEAR = 3  # words that a hint names


def closest(word: str, known: Iterable[str], most: int, cutoff: float) -> list[str]:
    """The known words that are like a word, the closest first; of equally close ones that which begins as it does.

    `cutoff`: that of difflib.
    """
    import difflib  # only a mistake pays for it

    words = list(known)
    found = difflib.get_close_matches(word, words, n=max(len(words), 1), cutoff=cutoff)
    return sorted(found, key=lambda one: _unlikeness(one, word, difflib.SequenceMatcher))[:most]


def _unlikeness(one: str, word: str, matcher: Any) -> tuple[float, int]:
    alike = next((place for place, (own, other) in enumerate(zip(one, word, strict=False)) if own != other), len(word))
    return -matcher(None, one, word).ratio(), -alike


def near_matches(
    word: str, known: Iterable[str], cutoff: float = 0.6, named: Mapping[str, str] | None = None
) -> str | None:
    """A hint that names the closest known words, or None when none is close. `cutoff`: that of difflib.

    `named`: of words that are other names of something, what they name. Each thing is in the hint once.
    """
    words = list(known)
    close = closest(word.lower(), words, max(len(words), 1), cutoff)
    near = each_once(close, named or {})[:MOST_NEAR]
    return "did you mean " + " or ".join(near) + "?" if near else None


def each_once(words: Iterable[str], named: Mapping[str, str]) -> list[str]:
    """The words without those that name what one before them does. `named`: what other names of something name."""
    found: dict[str, str] = {}
    for word in words:
        found.setdefault(named.get(word, word), word)
    return list(found.values())
