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
    devices: str | None = None  # one | several
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    relative_error: float | None = None  # (predicted - measured) / measured
    outcome: str | None = None  # predicted: fits | oom
    measured_outcome: str | None = None  # fits | oom, None where the source does not say
    ladder: str | None = None  # cases of one name are one run with a switch changed
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


LEAST_STEP_BYTES = 2**30  # smaller ones say more about rounding than about memory
LEAST_STEP_ROUNDINGS = 4
BESIDE = ("name", "gpu.name", "gpu.title", "gpu.note", "model.name", "model.parameters", "global_batch_size")
BATCH = ("micro_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """Two cases of a ladder that differ in one switch: how much the switch changed, measured and predicted."""

    ladder: str
    first: str
    second: str
    switch: str  # the key that differs
    measured_bytes: int
    predicted_bytes: int
    is_judged: bool  # at least 1 GiB, and four times the rounding of the source

    @property
    def relative_error(self) -> float:
        """(predicted - measured) / |measured|, of the step."""
        return (self.predicted_bytes - self.measured_bytes) / abs(self.measured_bytes)

    @property
    def has_sign(self) -> bool:
        """Whether the prediction moves the same way."""
        return (self.predicted_bytes > 0) == (self.measured_bytes > 0)


def ladder_steps(rows: Iterable[ValidateRow]) -> list[LadderStep]:
    """Every pair of cases of one ladder that differ in one switch alone; the batch size and its steps are one."""
    ladders: dict[str, list[ValidateRow]] = {}
    for row in rows:
        if row.ladder is not None and row.relative_error is not None and row.result is not None:
            ladders.setdefault(row.ladder, []).append(row)
    steps = []
    for name, members in ladders.items():
        keys = [switches_of(row.result.job) for row in members if row.result is not None]
        for i, first in enumerate(members):
            for j in range(i + 1, len(members)):
                second = members[j]
                differing = sorted(key for key in keys[i] | keys[j] if keys[i].get(key) != keys[j].get(key))
                if len(differing) > 1 and set(differing) <= set(BATCH):
                    differing = differing[-1:]
                if len(differing) != 1 or first.metric != second.metric:
                    continue
                steps.append(_step(name, first, second, differing[0]))
    return [step for step in steps if step.measured_bytes]


def _step(ladder: str, first: ValidateRow, second: ValidateRow, switch: str) -> LadderStep:
    sizes = (first.measured_bytes, second.measured_bytes, first.predicted_bytes, second.predicted_bytes)
    before, after, ours_before, ours_after = (size or 0 for size in sizes)
    rounding = max(rounding_bytes(before), rounding_bytes(after))
    return LadderStep(
        ladder=ladder,
        first=first.name,
        second=second.name,
        switch=switch,
        measured_bytes=after - before,
        predicted_bytes=ours_after - ours_before,
        is_judged=abs(after - before) >= max(LEAST_STEP_BYTES, LEAST_STEP_ROUNDINGS * rounding),
    )


def switches_of(job: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The keys of a resolved job that may differ within a ladder, flat."""
    found: dict[str, Any] = {}
    for key, value in job.items():
        if isinstance(value, Mapping):
            found |= switches_of(value, f"{before}{key}.")
        elif before + key not in BESIDE:
            found[before + key] = value
    return found


def rounding_bytes(size: int) -> float:
    """What a printed figure was rounded to: the coarsest decimal of a GiB or of a GB that gives it; 0 if none does."""
    for digits in range(4):
        for unit in (2.0**30, 1e9):
            shown = size / unit * 10**digits
            if abs(shown - round(shown)) < 10.0 ** (digits - 8):
                return float(unit) / 10.0**digits
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateSummary:
    """How good the predictions are. `outcomes_*`: cases whose source says whether the run fitted."""

    computed: int
    errors: int
    per_metric: Mapping[str, ErrorStats]
    per_runtime: Mapping[str, ErrorStats]
    per_devices: Mapping[str, ErrorStats] = field(default_factory=dict)  # one | several
    outcomes_right: int = 0
    outcomes_total: int = 0
    steps: tuple[LadderStep, ...] = ()

    @property
    def judged_steps(self) -> tuple[LadderStep, ...]:
        """Those that are large enough to be judged."""
        return tuple(step for step in self.steps if step.is_judged)

    @classmethod
    def of(cls, rows: Iterable[ValidateRow]) -> ValidateSummary:
        """Group the relative errors of `rows` by metric, runtime and devices, in order of first appearance."""
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
            per_devices=grouped("devices"),
            steps=tuple(ladder_steps(rows)),
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
class RuntimeRow:
    """One line of `vramplan runtimes`: what each decides where a job says nothing."""

    name: str
    title: str | None
    version: str | None
    model_code: str  # whose forward pass is replayed
    precision: str
    optimizer: str
    optimizer_implementation: str
    loss: str
    sharding: str | None  # of several devices; None: it has one
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
