"""`vramplan measure`: real steps of a job beside its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.job_options import as_job, job_of, with_job
from vramplan.cli.options import Format, Print, Profiles, Quiet

MOST_STEPS = 1000


@with_job
def measure(
    given: dict[str, Any],
    grid: Annotated[
        str | None,
        typer.Option("--grid", metavar="FILE", help="Run every job of a job file that the output does not have."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Without a GPU: one step on tensors without data, storages counted.")
    ] = False,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, max=MOST_STEPS, help="Measured steps, after a first one.")
    ] = 3,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The job file to which measured cases are appended.")
    ] = "measured.yaml",
    profiles: Profiles = None,
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Runs a few real steps of a job on the GPU at hand, and puts what it took beside the prediction.

    Needs PyTorch and Transformers, for adapters PEFT too: pip install 'vramplan[measure]'. The model has random
    weights; each job runs in a process of its own. What the allocator reserves is simulated. A run out of memory is a
    result.

    \b
    Examples:
      vramplan measure --model gpt2 --micro-batch 4
      vramplan measure -m llama-3.2-1b --seq 2048 --precision pure-bf16 --steps 10
      vramplan measure -m gpt2 -g v100 --trace --print results.0.relative_error
      vramplan measure --grid training.yaml -o measured.yaml

    \b
    Exit codes: 0 all were run, also out of memory; 2 bad input or a job that
    cannot be run.
    """
    from vramplan.cli.output import emit
    from vramplan.cli.output import output as output_as
    from vramplan.exit_codes import ExitCode
    from vramplan.results.measure import ERROR, Measurement

    to = output_as(output_format, key, quiet)
    rows = _rows(given, grid, trace, steps, output, profiles or [])
    answer = Measurement(tuple(rows), output)
    emit("measure", answer, to)
    raise typer.Exit(ExitCode.BAD_INPUT if answer.count(ERROR) else ExitCode.OK)


def _rows(given: dict[str, Any], grid: str | None, trace: bool, steps: int, output: str, profiles: list[str]) -> Any:
    """One row per job; each is written to the output as soon as it is there."""
    from vramplan.cli.output import say
    from vramplan.errors import UsageError
    from vramplan.job import read_job_file
    from vramplan.measure import apart
    from vramplan.measure.grid import check_output, measure_grid, measure_job
    from vramplan.results.measure import GPU, TRACE

    check_output(output, grid)
    folders = [Path(folder) for folder in profiles]
    how: dict[str, Any] = {
        "how": TRACE if trace else GPU,
        "steps": steps,
        "output": output,
        "profiles": profiles,
        "runner": apart.run_apart,
    }
    if grid is None:
        apart.check_installed()
        job = _job(given, folders, trace)
        return [measure_job(job, **how)]
    typed = as_job(given)
    if typed:
        raise UsageError(f"the jobs are in {grid}", key=next(iter(typed)), hint="put the key under defaults there")
    entries = read_job_file(grid, folders)
    apart.check_installed()
    rows = []
    for row in measure_grid(entries, **how):
        for problem in row.problems:
            say(f"error: {row.name}: {problem}")
        rows.append(row)
    return rows


def _job(given: dict[str, Any], folders: list[Path], trace: bool) -> Any:
    """The job of the options; a job that is really run is on the card of this machine unless another name is given."""
    from vramplan.errors import InputError, Problem

    if trace or given["gpu"] is not None:
        return job_of(given, folders)
    try:
        return job_of({**given, "gpu": "local"}, folders)
    except InputError as error:
        if any(problem.key == "gpu" for problem in error.problems):
            hint = "--trace runs without one, on the card that --gpu names"
            raise InputError([*error.problems, Problem("a real step needs a GPU", "measure", hint)]) from None
        raise
