"""Cases that are one run with a switch changed: what the switch changes, measured and predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vramplan.results.listings.measured import ValidateRow

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
