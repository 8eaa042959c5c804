"""Predict, run, compare and write, one job after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from vramplan.answers.fit import describe
from vramplan.answers.validation import counted_bytes
from vramplan.errors import InputError, Problem, UsageError
from vramplan.job import JobEntry, job_to_dict
from vramplan.measure.allocator import simulated
from vramplan.measure.apart import Reply, Request
from vramplan.measure.cases import Known, append, case_of
from vramplan.measure.refusals import check
from vramplan.planner.decision import decide
from vramplan.results.measure import ERROR, MEASURED, OOM, SKIPPED, TRACE, TRACED, MeasuredRow, Predicted
from vramplan.values.job import ResolvedJob
from vramplan.version import __version__

Runner = Callable[[Request], Reply]


def measure_job(
    job: ResolvedJob, *, how: str, steps: int, output: str, profiles: Sequence[str], runner: Runner
) -> MeasuredRow:
    """Run one job and append its case, under a name of its own. Raises InputError."""
    known = Known(output)
    judged, predicted = _predicted(job, how)
    name = known.free(_name(judged))
    return _run(judged._replace(name=name), predicted, how, steps, output, profiles, runner)


def measure_grid(
    entries: Sequence[JobEntry], *, how: str, steps: int, output: str, profiles: Sequence[str], runner: Runner
) -> Iterator[MeasuredRow]:
    """Run the jobs of a file that the output does not have. What cannot be run is a row with problems."""
    known = Known(output)
    for entry in entries:
        try:
            if not isinstance(entry.job, ResolvedJob):
                raise InputError(entry.problems or [Problem("textbook has no step to run", "runtime")])
            judged, predicted = _predicted(entry.job, how)
            if entry.name in known:
                other = known.other_than(entry.name, job_to_dict(judged), how)
                if other is not None:
                    said = f"{output} has another run of this name: {other} differs"
                    raise UsageError(said, key="name", hint="another name, or another --output")
                yield MeasuredRow(entry.name, SKIPPED, predicted)
                continue
            yield _run(judged, predicted, how, steps, output, profiles, runner)
        except InputError as error:
            if any(problem.key == "--output" for problem in error.problems):
                raise  # the next job could not be written either
            yield MeasuredRow(entry.name, ERROR, problems=error.problems)


def check_output(output: str, grid: str | None) -> None:
    """Raise UsageError if the cases would go where the jobs come from."""
    if not output or output == "-":
        raise UsageError("needs the name of a file, which grows", key="--output", hint="measured.yaml")
    if grid is not None and Path(grid).resolve() == Path(output).resolve():
        raise UsageError("is the file of the grid", key="--output", hint="they need a file each")


def _predicted(job: ResolvedJob, how: str) -> tuple[ResolvedJob, Predicted]:
    decision = decide(job if how == TRACE else simulated(job))
    check(decision.judged, how)
    result = describe(decision, with_remedies=False)
    peak = result.peak
    counted = counted_bytes(result)
    return decision.judged, Predicted(result.verdict, counted, peak.reserved_bytes, peak.device_bytes)


def _run(
    job: ResolvedJob, predicted: Predicted, how: str, steps: int, output: str, profiles: Sequence[str], runner: Runner
) -> MeasuredRow:
    keys = job_to_dict(job)
    reply = runner(Request(keys, how, steps, tuple(profiles)))
    environment = {"vramplan": __version__, "date": today(), **reply.environment}
    append(output, case_of(keys, how, predicted, reply.figures, environment, steps))
    status = OOM if reply.figures.outcome == "oom" else TRACED if how == TRACE else MEASURED
    return MeasuredRow(job.name, status, predicted, reply.figures, environment)


def today() -> str:
    """The date of a measurement, in UTC."""
    return datetime.now(UTC).date().isoformat()


def _name(job: ResolvedJob) -> str:
    """What tells the run from others of the same model."""
    steps = job.gradient_accumulation_steps or 1
    size = job.sequence_length if job.image_size is None else f"{job.image_size} px"
    parts: list[Any] = [f"{job.model.name} on {job.gpu.name}", f"{job.micro_batch_size} x {size}"]
    parts += [f"{steps} steps"] if steps > 1 else []
    parts += [job.precision, f"{job.optimizer} {job.optimizer_implementation}", job.attention]
    parts += [] if job.activation_checkpointing == "none" else [f"checkpointing {job.activation_checkpointing}"]
    parts += [] if job.adapter is None else [f"{job.adapter.kind} {job.adapter.rank or ''}".strip()]
    return ", ".join(parts)
