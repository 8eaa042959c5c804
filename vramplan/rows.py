"""What the renderers of `check`, `validate`, `gpus`, `models` and `show` are given: frozen values.

Sizes are integer bytes. Errors are `vramplan.errors.Problem`s of a job that could not be computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vramplan.errors import Problem
from vramplan.results import TIGHT, FitResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One job of a gate file. Without a result it could not be computed, and `problems` say why."""

    name: str
    result: FitResult | None
    passed: bool
    exit_code: int  # of this job alone: 0, 2, 3 or 4
    reasons: tuple[str, ...] = ()  # why it failed, or what is remarkable about a pass
    problems: tuple[Problem, ...] = ()
    file: str | None = None  # where the job is written; None for standard input
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSummary:
    """Counts over a gate file. `tight` counts verdicts, whether they passed or not; errors are not `failed`."""

    total: int
    passed: int
    failed: int
    tight: int
    errors: int

    @classmethod
    def of(cls, rows: Iterable[CheckRow]) -> CheckSummary:
        """Count `rows`."""
        rows = tuple(rows)
        computed = [row for row in rows if row.result is not None]
        return cls(
            total=len(rows),
            passed=sum(row.passed for row in computed),
            failed=sum(not row.passed for row in computed),
            tight=sum(row.result is not None and row.result.verdict == TIGHT for row in computed),
            errors=len(rows) - len(computed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRow:
    """One measured case. Figures are None where the case has none to compare (a case that only says fits or oom)."""

    name: str
    result: FitResult | None
    exit_code: int = 0
    metric: str | None = None  # allocated | reserved | device | unspecified
    runtime: str | None = None
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    relative_error: float | None = None  # (predicted - measured) / measured
    outcome: str | None = None  # predicted: fits | oom
    measured_outcome: str | None = None  # fits | oom, None where the source does not say
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorStats:
    """Relative errors of a group. median, p90 and worst are of the absolute error; bias is the mean with its sign."""

    count: int
    median: float | None
    p90: float | None
    worst: float | None
    bias: float | None

    @classmethod
    def of(cls, relative_errors: Sequence[float]) -> ErrorStats:
        """Describe `relative_errors`; percentiles are interpolated linearly."""
        if not relative_errors:
            return cls(count=0, median=None, p90=None, worst=None, bias=None)
        sizes = sorted(abs(error) for error in relative_errors)
        return cls(
            count=len(sizes),
            median=_percentile(sizes, 0.5),
            p90=_percentile(sizes, 0.9),
            worst=sizes[-1],
            bias=sum(relative_errors) / len(sizes),
        )


def _percentile(ordered: Sequence[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateSummary:
    """How good the predictions are. `outcomes_*`: cases whose source says whether the run fitted."""

    computed: int
    errors: int
    per_metric: Mapping[str, ErrorStats]
    per_runtime: Mapping[str, ErrorStats]
    outcomes_right: int = 0
    outcomes_total: int = 0

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> ValidateSummary:
        """Group the relative errors of `rows` by metric and by runtime, in order of first appearance."""
        rows = tuple(rows)
        computed = [row for row in rows if row.result is not None]
        judged = [row for row in computed if row.outcome is not None and row.measured_outcome is not None]

        def grouped(key: str) -> dict[str, ErrorStats]:
            groups: dict[str, list[float]] = {}
            for row in computed:
                name = getattr(row, key)
                if name is not None and row.relative_error is not None:
                    groups.setdefault(name, []).append(row.relative_error)
            return {name: ErrorStats.of(errors) for name, errors in groups.items()}

        return cls(
            computed=len(computed),
            errors=len(rows) - len(computed),
            per_metric=grouped("metric"),
            per_runtime=grouped("runtime"),
            outcomes_right=sum(row.outcome == row.measured_outcome for row in judged),
            outcomes_total=len(judged),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """One line of `vramplan gpus`. None is unknown."""

    name: str
    capacity_bytes: int
    capacity_basis: str  # visible | nominal
    title: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    bf16: bool | None = None
    flash_attention: bool | None = None
    aliases: tuple[str, ...] = ()
    origin: str = "shipped"  # or the folder in which the profile lies


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One line of `vramplan models`."""

    name: str
    family: str
    parameters: int | None
    layers: int | None
    hidden_size: int | None
    attention_heads: int | None = None
    key_value_heads: int | None = None
    vocabulary_size: int | None = None
    max_positions: int | None = None
    title: str | None = None
    aliases: tuple[str, ...] = ()
    origin: str = "shipped"  # or the folder in which the profile lies


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Where a value was published, and when it was read (ISO date)."""

    title: str | None
    url: str | None = None
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One field of a profile as published. A value of None has a `reason`."""

    key: str
    value: Any
    unit: str | None = None
    source: SourceRow | None = None
    reason: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """A whole profile for `show`."""

    kind: str  # gpu | model
    name: str
    fields: tuple[FieldRow, ...]
    title: str | None = None
    aliases: tuple[str, ...] = ()
    file: str | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)
