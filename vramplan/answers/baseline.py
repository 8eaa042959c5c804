"""A baseline: the answers of an earlier `vramplan check --format json`, and what has grown since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from vramplan.errors import InputError, Problem
from vramplan.exit_codes import ExitCode
from vramplan.results import FitResult
from vramplan.results.listings import CheckRow
from vramplan.units import format_gib

MOST_CAUSES = 3  # keys or components that a reason names
NAMED_BY_THE_JOB = ("name", "assumptions")


class Tolerance(NamedTuple):
    """How much a peak may grow before the gate fails: a share of what it was, and bytes; the larger one counts."""

    fraction: float = 0.01
    bytes: int = 0

    def allows(self, before_bytes: int, now_bytes: int) -> bool:
        """Whether a peak that was `before_bytes` may be `now_bytes`."""
        return now_bytes - before_bytes <= max(self.bytes, int(self.fraction * before_bytes))


class Baseline(NamedTuple):
    """The jobs of an earlier answer by the name, or by file and name where a name is there twice."""

    jobs: Mapping[tuple[str | None, str], Mapping[str, Any]]
    tolerance: Tolerance

    def of(self, row: CheckRow) -> Mapping[str, Any] | None:
        """What the job was; None if the baseline does not have it. A moved file is the same job."""
        exact = self.jobs.get((row.file, row.name))
        if exact is not None:
            return exact
        called = [job for (_, name), job in self.jobs.items() if name == row.name]
        return called[0] if len(called) == 1 else None


def baseline_from(document: Any, path: str, tolerance: Tolerance) -> Baseline:
    """The baseline that a document is. Raises InputError if it is no answer of `vramplan check --format json`."""
    results = document.get("results") if isinstance(document, Mapping) else None
    if not isinstance(results, list):
        hint = f"vramplan check FILE --format json > {path}"
        raise InputError([Problem("is no answer of vramplan check --format json", "--baseline", hint, path)])
    jobs: dict[tuple[str | None, str], Mapping[str, Any]] = {}
    for place, job in enumerate(results):
        if not isinstance(job, Mapping) or not isinstance(job.get("name"), str):
            raise InputError([Problem("has no name", f"results.{place}", file=path)])
        if job.get("peak") is None:
            continue  # it could not be computed then
        if not isinstance(job["peak"], Mapping) or not isinstance(job["peak"].get("device_bytes"), int):
            raise InputError([Problem("has no peak.device_bytes", f"results.{place}", file=path)])
        jobs[job.get("file"), job["name"]] = job
    return Baseline(jobs, tolerance)


def compared(row: CheckRow, baseline: Baseline) -> CheckRow:
    """The row; failed if its peak has grown past the tolerance, with what grew and which keys have changed."""
    if not isinstance(row.result, FitResult):
        return row
    before = baseline.of(row)
    if before is None:
        return replace(row, reasons=(*row.reasons, "the baseline does not have this job"))
    was, now = before["peak"]["device_bytes"], row.result.peak.device_bytes
    if baseline.tolerance.allows(was, now):
        return row
    share = f"{(now - was) / was:.1%}" if was else "from nothing"
    reason = f"the peak grew by {format_gib(now - was)} ({share}) over the baseline"
    causes = [*_changed(before.get("job"), row.result.job), *_grown(before.get("components"), row.result)]
    reasons = (*row.reasons, f"{reason}: {'; '.join(causes)}" if causes else reason)
    code = row.exit_code if not row.passed else ExitCode.DOES_NOT_FIT
    return replace(row, passed=False, exit_code=code, reasons=reasons)


def gone(rows: Sequence[CheckRow], baseline: Baseline) -> list[str]:
    """Names of jobs that the baseline has and the files no more."""
    names = {row.name for row in rows}
    return [name for _, name in baseline.jobs if name not in names]


def _changed(before: Any, now: Mapping[str, Any]) -> Iterator[str]:
    """Keys of the resolved job that are not what they were."""
    if not isinstance(before, Mapping):
        return
    old, new = dict(_flat(before)), dict(_flat(now))
    keys = [key for key in (*new, *(key for key in old if key not in new)) if old.get(key) != new.get(key)]
    shown = [key for key in keys if key.partition(".")[0] not in NAMED_BY_THE_JOB]
    yield from (f"{key} was {_said(old.get(key))} and is {_said(new.get(key))}" for key in shown[:MOST_CAUSES])
    if len(shown) > MOST_CAUSES:
        yield f"{len(shown) - MOST_CAUSES} more keys have changed"


def _grown(before: Any, result: FitResult) -> Iterator[str]:
    """The components that grew most."""
    if not isinstance(before, list):
        return
    old = {one["name"]: one["bytes"] for one in before if isinstance(one, Mapping) and {"name", "bytes"} <= one.keys()}
    growth = {one.name: one.bytes - old.get(one.name, 0) for one in result.components}
    most = sorted((one for one in growth if growth[one] > 0), key=lambda one: -growth[one])
    yield from (f"{name} +{format_gib(growth[name])}" for name in most[:MOST_CAUSES])


def _flat(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{path}{key}.")
        else:
            yield path + key, list(item) if isinstance(item, tuple) else item


def _said(value: Any) -> str:
    return "left out" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
