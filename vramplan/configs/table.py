"""What is known of the keys of a program: tables of them, and the defaults of its releases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vramplan.configs.own_names import is_quiet, may_decide
from vramplan.errors import closest
from vramplan.tuples import NamedTuple


def names(text: str) -> frozenset[str]:
    """The words of a text, as tables of keys are written."""
    return frozenset(text.split())


class ProgramRelease(NamedTuple):
    """The defaults of one release of a program.

    `defaults`: by the program's own keys; a key that is absent has no default there. `source`: repository, files,
    commit.
    """

    version: str
    date: str
    source: str
    defaults: Mapping[str, Any]


SLIP = 0.93  # of difflib: one letter changed, or two exchanged, in a word of a dozen
LIKE = 0.8  # of difflib: `sequence_length` and `sequence_len`, not `memory` and `max_memory`


@dataclass(frozen=True)
class Table:
    """What is known of the keys of a program.

    `understood`: keys that a reader takes. `without_effect`: keys that change neither memory nor time of a step.
    `unmodelled`: keys that do, and for which a job has no word; with what they change. A key that ends in `.*` stands
    for everything below it, and one that ends in `*` for a prefix. `is_extended`: people run the program from scripts
    with settings of their own, which count for nothing where their names say so. `passes_over`: the program looks at no
    key that it has not; one that is like a known key, or that may say what is trained, stays not understood.
    """

    understood: frozenset[str]
    without_effect: frozenset[str]
    unmodelled: Mapping[str, str] = field(default_factory=dict)
    is_extended: bool = False
    passes_over: bool = False

    def class_of(self, key: str) -> str | None:
        """The column that a key stands in, or None; of several patterns the most exact one counts.

        A prefix does not take a key that is one slip away from an understood one: `fp8_fromat` is no detail of fp8.
        """
        columns = (
            ("understood", self.understood),
            ("unmodelled", self.unmodelled),
            ("without_effect", self.without_effect),
        )
        best: tuple[int, str] | None = None
        for name, keys in columns:
            if key in keys:
                return name
            found = _holds(keys, key)
            if found is not None and (best is None or len(found) > best[0]):
                best = (len(found), name)
                prefix = not found.endswith(".*")
        if best is not None and prefix and self.is_slip(key):
            return None
        if best is None and self.is_extended and is_quiet(key) and not self.is_slip(key):
            return "without_effect"
        if best is None and self.passes_over and "." not in key and not may_decide(key):
            return None if closest(key, self.known(), 1, LIKE) else "without_effect"
        return None if best is None else best[1]

    def is_own(self, key: str) -> bool:
        """Whether a key is somebody's own and without effect, as its name says."""
        columns = (self.understood, self.unmodelled, self.without_effect)
        return self.class_of(key) is not None and not any(_holds(keys, key) for keys in columns)

    def is_slip(self, key: str) -> bool:
        """Whether a key is one slip away from an understood one."""
        return bool(closest(key, self.understood, 1, SLIP))

    def unmodelled_note(self, key: str) -> str:
        """What a key without a word changes."""
        found = _holds(self.unmodelled, key)
        return self.unmodelled[found] if found is not None else ""

    def known(self) -> tuple[str, ...]:
        """Every key, for near matches."""
        return (*self.understood, *self.without_effect, *self.unmodelled)


def _holds(keys: Iterable[str] | Mapping[str, str], key: str) -> str | None:
    if key in keys:
        return key
    parts = key.split(".")
    for length in range(len(parts), 0, -1):
        pattern = ".".join(parts[:length]) + ".*"
        if pattern in keys:
            return pattern
    for pattern in keys:
        if pattern.endswith("*") and not pattern.endswith(".*") and key.startswith(pattern[:-1]):
            return pattern
    return None
