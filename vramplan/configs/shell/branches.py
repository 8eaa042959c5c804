"""Which variables of a script hang on a test of one that nothing sets."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = re.compile(r"[A-Za-z_]\w*")
_USED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_SETS = re.compile(r"(?P<plain>[A-Za-z_]\w*)(?P<more>\+?)=|\"?\$\{(?P<default>[A-Za-z_]\w*):?=")
"""What sets a variable: `X=1`, `X+=1`, `${X:=1}`."""

_ASKS_WHETHER_SET = ("-z", "-n", "")
"""Signs of a test of whether a variable is set, and what it is then compared with."""


def decided_by(texts: Iterable[str], unset: Iterable[str]) -> set[str]:
    """The variables that nothing sets and that a test needs; none where it asks whether they are set."""
    asks = any(text in _ASKS_WHETHER_SET for text in texts)
    return set() if asks else {name for name in unset if _NAME.fullmatch(name)}


class Branches:
    """The open branches of a script, and what they decide."""

    def __init__(self) -> None:
        self.open: list[set[str]] = []
        """For each open `if` and `case`: variables that nothing sets and that its tests need."""

        self.decided: dict[str, set[tuple[str, str]]] = {}
        """For each variable: those that a branch sets and that it is made of, each with one that the test needs."""

    def sets(self, texts: Iterable[str]) -> None:
        """Note what words set, in a branch or behind it."""
        here = set().union(*self.open)
        for text in texts:
            found = _SETS.match(text)
            if found is None:
                continue
            name = found["plain"] or found["default"]
            before = self.decided.get(name, set()) if here or found["more"] else set()
            self.decided[name] = before | {(name, one) for one in here} | self.needed([text])

    def needed(self, texts: Iterable[str]) -> set[tuple[str, str]]:
        """The variables that words are made of and that hang on such a test, each with one that the test needs."""
        used = (name for text in texts for name in _USED.findall(text))
        return {pair for name in used for pair in self.decided.get(name, ())}
