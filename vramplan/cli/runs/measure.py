"""What `vramplan measure` does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from vramplan.cli.job_options import as_job
from vramplan.cli.output import emit, say
from vramplan.cli.output import output as output_as
from vramplan.cli.runs.jobs import job_of
from vramplan.errors import InputError, Problem, UsageError
from vramplan.exit_codes import ExitCode
from vramplan.job import read_job_file
from vramplan.measure import apart
from vramplan.measure.grid import check_output, measure_grid, measure_job
from vramplan.measure.processes import Ahead
from vramplan.results.measure import ERROR, GPU, TRACE, Measurement


def measure(
    given: dict[str, Any],
    grid: str | None,
    trace: bool,
    steps: int,
    output: str,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan measure` with the values of its options."""
    to = output_as(output_format, key, quiet)
    rows = _rows(given, grid, trace, steps, output, profiles or [])
    answer = Measurement(tuple(rows), output)
    emit("measure", answer, to)
    raise typer.Exit(ExitCode.BAD_INPUT if answer.count(ERROR) else ExitCode.OK)


def _rows(given: dict[str, Any], grid: str | None, trace: bool, steps: int, output: str, profiles: list[str]) -> Any:
    """One row per job; each is written to the output as soon as it is there."""
    check_output(output, grid)
    folders = [Path(folder) for folder in profiles]
    how: dict[str, Any] = {
        "how": TRACE if trace else GPU,
        "steps": steps,
        "output": output,
        "profiles": profiles,
    }
    if grid is None:
        apart.check_installed()
        job = _job(given, folders, trace)
        return [measure_job(job, **how, runner=apart.run_apart)]
    typed = as_job(given)
    if typed:
        raise UsageError(f"the jobs are in {grid}", key=next(iter(typed)), hint="put the key under defaults there")
    entries = read_job_file(grid, folders)
    apart.check_installed()
    rows = []
    with Ahead() as ahead:
        runner = apart.run_apart if trace else partial(apart.run_apart, run=ahead)
        for row in measure_grid(entries, **how, runner=runner):
            for problem in row.problems:
                say(f"error: {row.name}: {problem}")
            rows.append(row)
    return rows


def _job(given: dict[str, Any], folders: list[Path], trace: bool) -> Any:
    """The job of the options; a job that is really run is on the card of this machine unless another name is given."""
    if trace or given["gpu"] is not None:
        return job_of(given, folders)
    try:
        return job_of({**given, "gpu": "local"}, folders)
    except InputError as error:
        if any(problem.key == "gpu" for problem in error.problems):
            hint = "--trace runs without one, on the card that --gpu names"
            raise InputError([*error.problems, Problem("a real step needs a GPU", "measure", hint)]) from None
        raise
