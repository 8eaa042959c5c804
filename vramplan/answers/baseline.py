"""A baseline: the answers of an earlier `vramplan check --format json`, and what has grown since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import basename, normpath
from typing import Any, TypeAlias

from vramplan.errors import InputError, Problem
from vramplan.exit_codes import ExitCode
from vramplan.results import SCHEMA_VERSION, FitResult
from vramplan.results.listings import CheckRow
from vramplan.tuples import NamedTuple
from vramplan.units import format_gib

MOST_CAUSES = 3  # keys or components that a reason names
LONGEST_VALUE = 60  # characters of a value that a reason quotes
NAMED_BY_THE_JOB = ("name", "assumptions")
NOTHING_KNOWN = "the baseline does not have this job"

Key: TypeAlias = tuple[str | None, str]
"""File and name of a job."""


class Tolerance(NamedTuple):
    """How much a peak may grow before the gate fails: a share of what it was, and bytes; the larger one counts."""

    fraction: float = 0.01
    bytes: int = 0

    def allows(self, before_bytes: int, now_bytes: int) -> bool:
        """Whether a peak that was `before_bytes` may be `now_bytes`."""
        return now_bytes - before_bytes <= max(self.bytes, int(self.fraction * before_bytes))


class Baseline(NamedTuple):
    """The jobs of an earlier answer by their files and names, and how much each may grow."""

    jobs: Mapping[Key, Mapping[str, Any]]
    by_name: Mapping[str, Sequence[Key]]
    tolerance: Tolerance

    def key_of(self, row: CheckRow) -> Key | None:
        """Which job of the baseline a row is; None if it has none.

        A file that has moved, or that is named from another folder, has the same jobs where the names tell them apart.
        """
        called = self.by_name.get(row.name, ())
        for alike in (_same_path, _same_last_part):
            found = [key for key in called if alike(key[0], row.file)]
            if len(found) == 1:
                return found[0]
        return called[0] if len(called) == 1 else None

    def may_have_grown(self, name: str, now_bytes: int) -> bool:
        """Whether a job of this name, in any file, was so much smaller that the gate fails."""
        was = (self.jobs[key]["peak"]["device_bytes"] for key in self.by_name.get(name, ()))
        return any(not self.tolerance.allows(one, now_bytes) for one in was)


def _same_path(one: str | None, other: str | None) -> bool:
    return one == other if one is None or other is None else normpath(one) == normpath(other)


def _same_last_part(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and basename(one) == basename(other)


def baseline_from(document: Any, path: str, tolerance: Tolerance) -> Baseline:
    """The baseline that a document is. Raises InputError if it is no answer of `vramplan check --format json`."""
    results = document.get("results") if isinstance(document, Mapping) else None
    if not isinstance(results, list):
        hint = f"vramplan check FILE --format json > {path}"
        raise InputError([Problem("is no answer of vramplan check --format json", "--baseline", hint, path)])
    if document.get("schema_version") != SCHEMA_VERSION:
        hint = "make it again with this vramplan"
        raise InputError([Problem(f"expected {SCHEMA_VERSION}", "schema_version", hint, path)])
    jobs: dict[Key, Mapping[str, Any]] = {}
    by_name: dict[str, list[Key]] = {}
    for place, job in enumerate(results):
        name = job.get("name") if isinstance(job, Mapping) else None
        if not isinstance(name, str):
            raise InputError([Problem("has no name", f"results.{place}", file=path)])
        if job.get("peak") is None:
            continue  # it could not be computed then
        if not isinstance(job["peak"], Mapping) or not _is_count(job["peak"].get("device_bytes")):
            raise InputError([Problem("has no peak.device_bytes", f"results.{place}", file=path)])
        file = job.get("file")
        key = (file if isinstance(file, str) else None, name)
        if key not in jobs:
            by_name.setdefault(name, []).append(key)
        jobs[key] = job
    return Baseline(jobs, by_name, tolerance)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def compared(row: CheckRow, baseline: Baseline) -> CheckRow:
    """The row; failed if its peak has grown past the tolerance, with which keys have changed and what grew.

    For a row that has figures alone nothing is said of causes; `Baseline.may_have_grown` tells for which it matters.
    """
    result = row.result
    if result is None:
        return row
    key = baseline.key_of(row)
    if key is None:
        return replace(row, reasons=(*row.reasons, NOTHING_KNOWN))
    before = baseline.jobs[key]
    was, now = before["peak"]["device_bytes"], result.peak.device_bytes
    row = replace(row, baseline_bytes=was)
    if baseline.tolerance.allows(was, now):
        return row
    share = f"{(now - was) / was:.1%}" if was else "from nothing"
    reason = f"the peak grew by {format_gib(now - was)} ({share}) over the baseline"
    causes: list[str] = []
    if isinstance(result, FitResult):
        causes = [*_changed(before, result), *_grown(before.get("components"), result)]
    reasons = (*row.reasons, f"{reason}: {'; '.join(causes)}" if causes else reason)
    code = ExitCode.BAD_INPUT if row.exit_code == ExitCode.BAD_INPUT else ExitCode.DOES_NOT_FIT
    return replace(row, passed=False, exit_code=code, reasons=reasons)


def gone(rows: Iterable[CheckRow], baseline: Baseline) -> tuple[str, ...]:
    """Names of jobs that the baseline has and the files no more."""
    met = {baseline.key_of(row) for row in rows}
    return tuple(name for _, name in (key for key in baseline.jobs if key not in met))


def _changed(before: Mapping[str, Any], result: FitResult) -> Iterator[str]:
    """Keys of the resolved job, and of what is recommended for it, that are not what they were."""
    old_job, old_choice = before.get("job"), before.get("recommended")
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(old_job, Mapping):
        old, new = dict(_flat(old_job)), dict(_flat(result.job))
        keys = [*new, *(key for key in old if key not in new)]
        pairs += [(key, old.get(key), new.get(key)) for key in keys if key.partition(".")[0] not in NAMED_BY_THE_JOB]
    if isinstance(old_choice, Mapping):
        chosen = result.recommended
        new_choice = {
            "micro_batch_size": chosen.micro_batch_size,
            "activation_checkpointing": chosen.activation_checkpointing,
        }
        said = {(key, old, new) for key, old, new in pairs if key in new_choice}
        chosen_now = [(key, old_choice[key], new_choice[key]) for key in new_choice if key in old_choice]
        pairs += [(f"recommended {one[0]}", *one[1:]) for one in chosen_now if one not in said]
    shown = [(key, old, new) for key, old, new in pairs if old != new]
    yield from (f"{key} was {_said(old)} and is {_said(new)}" for key, old, new in shown[:MOST_CAUSES])
    if len(shown) > MOST_CAUSES:
        yield f"{len(shown) - MOST_CAUSES} more keys have changed"


def _grown(before: Any, result: FitResult) -> Iterator[str]:
    """The components that grew most."""
    if not isinstance(before, list):
        return
    parts = [one for one in before if isinstance(one, Mapping) and isinstance(one.get("name"), str)]
    old = {one["name"]: one["bytes"] for one in parts if _is_count(one.get("bytes"))}
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
    text = "left out" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
