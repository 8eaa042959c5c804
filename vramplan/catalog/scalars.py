"""What a piece of text means as a number, a boolean or nothing: strict rules instead of YAML 1.1's.

YAML 1.1 reads `no` as false, `017` as 15, `3:20` as 200 and `1e9` as text. Here `true` and `false` are the booleans,
numbers are JSON's numbers (with an optional `+`, and `1.` and `.5`), and everything else is the text that was written.
"""

from __future__ import annotations

import math
import re

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLEANS = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}

_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?\.?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
_LONGEST_NUMBER = 60  # characters: int() of a million digits takes minutes, and nothing here is above 2**63

JSON_LITERAL = re.compile(r"null|true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


class NotANumber(ValueError):
    """The text is a number in intent, but none that can be computed with; `str` says why."""


def number(text: str) -> int | float | None:
    """The number that `text` spells, None if it spells none; NotANumber for nan, infinities and absurd lengths."""
    if _NUMBER.fullmatch(text) is None:
        if _NOT_FINITE.fullmatch(text):
            raise NotANumber(f"{text} is not a finite number")
        return None
    if len(text) > _LONGEST_NUMBER:
        raise NotANumber(f"{text[:20]}... has too many digits")
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if not math.isfinite(value):
        raise NotANumber(f"{text} is too large")
    return value


def plain_value(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar; NotANumber as in `number`."""
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    value = number(text)
    return text if value is None else value


def json_problem(text: str) -> str | None:
    """Why an unquoted scalar of a JSON file is none of JSON's literals; None if it is one."""
    if JSON_LITERAL.fullmatch(text):
        return None
    if _NOT_FINITE.fullmatch(text):
        return f"{text} is not a finite number, and not JSON"
    return f"{text[:40]!r} is not JSON: text has quotes, and the words are null, true and false"
