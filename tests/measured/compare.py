"""Published peaks beside predictions: shared by the tests and by the generator of docs/measured.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from vramplan.answers.fit import describe
from vramplan.answers.validation import compare
from vramplan.job import read_job_file
from vramplan.planner.decision import decide
from vramplan.results.listings import ValidateRow, ValidateSummary
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import ResolvedJob

HERE = Path(__file__).parent
PEAKS = ("one_device", "several_devices")
DIED = "died"
COUNTS = {"one_device": 75, "several_devices": 45, DIED: 19}


def rows(file: str, *, simulated: bool = True) -> tuple[ValidateRow, ...]:
    """Every case of a file, computed; with the allocator simulated, as `vramplan validate` does, or estimated."""
    return _rows(file, simulated)


@cache
def _rows(file: str, simulated: bool) -> tuple[ValidateRow, ...]:
    found = []
    for entry in read_job_file(HERE / f"{file}.yaml"):
        job = entry.job
        assert isinstance(job, ResolvedJob), entry.problems
        if simulated and job.allocator is None:
            job = job._replace(allocator=DEFAULT)
        if not simulated:
            job = job._replace(allocator=None)
        result = describe(decide(job, whole_ladder=False), with_remedies=False)
        found.append(compare(result, job))
    return tuple(found)


def all_rows(*, simulated: bool = True) -> tuple[ValidateRow, ...]:
    """Those with a measured peak."""
    return tuple(row for file in PEAKS for row in rows(file, simulated=simulated))


@cache
def beside_rates() -> tuple[ResolvedJob, ...]:
    """Jobs with peaks beside published rates, of the programs that are modelled: no `use` is left in them."""
    found = []
    for entry in read_job_file(HERE / "rates.yaml"):
        job = entry.job
        measured = (job.case.get("measured") or {}) if isinstance(job, ResolvedJob) else {}
        if not isinstance(job, ResolvedJob) or "peak_bytes" not in measured or "paddle" in job.name:
            continue
        found.append(job._replace(case={key: value for key, value in job.case.items() if key != "use"}))
    return tuple(found)


@cache
def unseen_rows(*, simulated: bool = True) -> tuple[ValidateRow, ...]:
    """Those jobs, computed: no figure of the simulation was chosen from them but the width of a doubt."""
    found = []
    for one in beside_rates():
        job = one._replace(allocator=DEFAULT if simulated else None)
        found.append(compare(describe(decide(job, whole_ladder=False), with_remedies=False), job))
    return tuple(found)


@cache
def summary(file: str) -> ValidateSummary:
    """How good they are."""
    return ValidateSummary.of(rows(file))
