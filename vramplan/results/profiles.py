"""What `vramplan profiles` answers, as frozen values: findings of the linter, a new file, differences, folders."""

from __future__ import annotations

from typing import Any

from vramplan.errors import Problem
from vramplan.tuples import NamedTuple

ERROR, WARNING = "error", "warning"


class Finding(NamedTuple):
    """One thing that the linter noticed, with its place."""

    severity: str  # error: the file cannot be used, or is not finished | warning: a figure that is hardly true
    problem: Problem


class Linted(NamedTuple):
    """What became of the files: every one that was looked at, and everything that was noticed, in their order."""

    files: tuple[str, ...]
    findings: tuple[Finding, ...]

    def count(self, severity: str) -> int:
        """How many findings are of that severity."""
        return sum(finding.severity == severity for finding in self.findings)


class NewProfile(NamedTuple):
    """A file that was written, and what is left to do in it."""

    kind: str  # gpu | model | runtime | stack
    name: str
    file: str | None  # None: it went to standard output
    copied_from: str | None
    shadows: str | None  # the shipped file of that name
    to_do: tuple[str, ...]  # the keys that are still TODO
    text: str


class DiffValue(NamedTuple):
    """One field of one of two profiles. `present` False: the profile does not have it; then all others are None."""

    present: bool
    value: Any = None  # sizes in bytes, rates per second, power in watts; None is unknown
    text: str | None = None  # as published
    unit: str | None = None
    source: str | None = None  # title of the source
    url: str | None = None
    reason: str | None = None


class DiffRow(NamedTuple):
    """One field of two profiles side by side. `same` compares values: 32 GiB and 32768 MiB are the same."""

    key: str
    same: bool
    a: DiffValue
    b: DiffValue


class DiffSide(NamedTuple):
    """One of the two profiles."""

    name: str
    title: str | None
    file: str
    origin: str  # shipped, or the folder


class ProfileDiff(NamedTuple):
    """Two profiles of one kind, field by field."""

    kind: str  # gpu | model | runtime | stack
    a: DiffSide
    b: DiffSide
    rows: tuple[DiffRow, ...]


class Folder(NamedTuple):
    """One folder in which profiles are looked up. Counts are of files; `shadowing` those that hide a later one."""

    path: str
    named_by: str  # --profiles | VRAMPLAN_PROFILES | configuration | shipped
    exists: bool
    gpus: int
    models: int
    runtimes: int
    stacks: int
    shadowing: tuple[str, ...]
