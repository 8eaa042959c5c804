"""The jobs of a gate file, and how many passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vramplan.errors import Problem
from vramplan.results import TIGHT, FitResult
from vramplan.results.figures import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One job of a gate file. Without a result it could not be computed, and `problems` say why.

    Documents and tables need a whole `FitResult`; the other formats show figures alone.
    """

    name: str
    result: FitResult | Figures | None
    passed: bool
    exit_code: int  # of this job alone: 0, 2, 3 or 4
    reasons: tuple[str, ...] = ()  # why it failed, or what is remarkable about a pass
    problems: tuple[Problem, ...] = ()
    file: str | None = None  # where the job is written; None for standard input
    line: int | None = None
    baseline_bytes: int | None = None  # the device figure of the same job in the baseline, where there is one

    @property
    def status(self) -> str:
        """pass | tight: it passed, and its range crosses the usable memory | fail | error: it could not be computed."""
        if self.result is None:
            return "error"
        if not self.passed:
            return "fail"
        return "tight" if self.result.verdict == TIGHT else "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSummary:
    """Counts over gate files. `tight` counts verdicts, whether they passed or not; errors are not `failed`.

    `gone`: jobs of the baseline that the files no more have; None without a baseline.
    """

    total: int
    passed: int
    failed: int
    tight: int
    errors: int
    gone: tuple[str, ...] | None = None

    @classmethod
    def of(cls, rows: Iterable[CheckRow], gone: tuple[str, ...] | None = None) -> CheckSummary:
        """Count `rows`."""
        rows = tuple(rows)
        computed = [row for row in rows if row.result is not None]
        return cls(
            total=len(rows),
            passed=sum(row.passed for row in computed),
            failed=sum(not row.passed for row in computed),
            tight=sum(row.result is not None and row.result.verdict == TIGHT for row in computed),
            errors=len(rows) - len(computed),
            gone=gone,
        )
