"""What small commands print, of texts that are known: `$(basename "$MODEL")`, `$(echo "$A * $B" | bc)`.

Source: the GNU Coreutils manual, basename, cut, dirname, expr, tr; POSIX, awk and bc; the GNU Bash manual, section
3.5.3 (what is taken away from the value of a variable) and `command -v`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from fnmatch import translate

from vramplan.configs.shell.numbers import arithmetic
from vramplan.configs.shell.scanning import statements_of

_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_MORE = re.compile(r"[;&<>`\n]|\|\|")
_BLANKS = re.compile(r"s/ +(\*|\\\+)/ /g")
"""What `sed` is told to make one blank of several."""

_ESCAPES = {"\\n": "\n", "\\t": "\t"}
_FIELD = re.compile(r"\{\s*print\s+\$(?P<field>\d+|NF)\s*;?\s*\}")
"""What `awk` is told to print: one field of each line."""

_KEEPING = re.compile(r"\s*echo\s[^|]*(\|\s*(tr '\\n' ' '|sed 's/ +(\*|\\\+)/ /g'|xargs)\s*)+")
"""What makes one line of several."""

Words = Sequence[str]


def keeps_words(text: str) -> bool:
    """Whether a command prints the words of a text as they are, whatever they are."""
    return _KEEPING.fullmatch(text) is not None


def output_of(text: str, expanded: Callable[[str], list[list[str]]]) -> str | None:
    """What a command prints whose words are known, behind pipes or not; None where it is none of these.

    `expanded`: the words of each command of the text, with their variables replaced.
    """
    if _MORE.search(_QUOTED.sub("", text)) or not statements_of(text):
        return None
    first, *rest = expanded(text)
    held = _printed(first)
    for words in rest:
        if held is None:
            return None
        held = _filtered(words, held)
    return held


def _printed(words: Words) -> str | None:
    name, given = words[0], list(words[1:])
    if name == "echo":
        return " ".join(word for word in given if word not in ("-n", "-e"))
    if name == "basename" and 1 <= len(given) <= 2:
        return posixpath.basename(given[0].rstrip("/")).removesuffix(given[1] if len(given) > 1 else "")
    if name == "dirname" and len(given) == 1:
        return posixpath.dirname(given[0].rstrip("/")) or "."
    if (name == "which" and len(given) == 1) or (name == "command" and given[:1] == ["-v"] and len(given) == 2):
        return given[-1]  # its folder says nothing
    if name == "expr":
        return _whole(" ".join(given))
    return None


def _filtered(words: Words, held: str) -> str | None:
    name, given = words[0], list(words[1:])
    if name == "cut":
        return _cut(given, held)
    if name == "tr":
        given = [_ESCAPES.get(word, word) for word in given]
    if name == "tr" and len(given) == 2 and all(len(word) == 1 for word in given):
        return held.replace(given[0], given[1])
    if name == "tr" and len(given) == 2 and given[0] == "-d" and len(given[1]) == 1:
        return held.replace(given[1], "")
    if name == "sed" and len(given) == 1 and _BLANKS.fullmatch(given[0]):
        return re.sub(" +", " ", held)
    if name == "xargs" and not given:
        return " ".join(held.split())
    if name == "awk":
        return _field(given, held)
    return _whole(held) if name == "bc" and set(given) <= {"-l"} and ("-l" not in given) else None


def _whole(text: str) -> str | None:
    """The number that an expression is, as `expr` and `bc` have it: without a fraction."""
    value = arithmetic(text.replace("/", "//"))
    return None if value is None else str(int(value))


def _cut(given: Sequence[str], held: str) -> str | None:
    joined = re.sub(r"(^| )-([df]) ", r"\1-\2", " ".join(given))
    found = re.fullmatch(r"-d(?P<sign>.) -f(?P<at>\d+)|-f(?P<other>\d+) -d(?P<by>.)", joined)
    if found is None:
        return None
    sign, at = (found["sign"] or found["by"]), int(found["at"] or found["other"])
    parts = held.split(sign)
    return held if len(parts) == 1 else parts[at - 1] if 0 < at <= len(parts) else ""


def _field(given: Sequence[str], held: str) -> str | None:
    joined = re.sub(r"^-F ", "-F", " ".join(given))
    found = re.fullmatch(r"(-F(?P<sign>[^ ]) )?(?P<what>.*)", joined)
    what = None if found is None else _FIELD.fullmatch(found["what"])
    if found is None or what is None:
        return None
    parts = held.split(found["sign"]) if found["sign"] else held.split()
    at = len(parts) if what["field"] == "NF" else int(what["field"])
    return held if at == 0 else parts[at - 1] if at <= len(parts) else ""


def changed(value: str, rest: str) -> str | None:
    """The value of `${NAME##*/}` and its like, whose value is known; None for what is none of these."""
    head = re.match(r"##?|%%?|//?|,,|\^\^", rest)
    if head is None:
        return None
    sign, pattern = head[0], rest[head.end() :]
    if sign in (",,", "^^"):
        return None if pattern else value.lower() if sign == ",," else value.upper()
    if re.search(r"[$`\"'\\\[]", pattern):
        return None
    if sign[0] == "/":
        old, _, new = pattern.partition("/")
        if not old or re.search(r"[*?#%]", old):
            return None
        return value.replace(old, new, -1 if sign == "//" else 1)
    matched = re.compile(translate(pattern))
    ends = range(len(value) + 1) if sign in ("#", "%%") else range(len(value), -1, -1)
    for at in ends:
        if sign[0] == "#" and matched.match(value[:at]):
            return value[at:]
        if sign[0] == "%" and matched.match(value[at:]):
            return value[:at]
    return value
