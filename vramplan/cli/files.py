"""`vramplan check` and `vramplan validate`: all jobs of a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vramplan.cli.options import Allocator, File, Format, GateFormat, Jobs, Print, Profiles, Quiet, Strict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vramplan.answers.session import Session
    from vramplan.values.allocator import Settings
    from vramplan.values.textbook import AnyJob

FIGURES_ALONE = ("text", "markdown", "junit", "github")  # formats of check that show figures and reasons


def check(
    file: File,
    jobs: Jobs = None,
    strict: Strict = False,
    profiles: Profiles = None,
    output_format: GateFormat = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """A gate for CI: every job of FILE must have the verdict it expects. Fails closed.

    \b
    Examples:
      vramplan check training.yaml --strict
      vramplan check training.yaml --job 'Llama*' --format json
      vramplan check training.yaml --format junit > memory.xml

    \b
    Exit codes: 0 all passed, 2 bad input or a job that cannot be computed,
    3 a gate failed, 4 tight (with --strict).
    """
    from dataclasses import replace

    from vramplan.answers.gate import exit_code, gate
    from vramplan.answers.session import Session
    from vramplan.cli.output import GATE_FORMATS, emit, output
    from vramplan.exit_codes import ExitCode
    from vramplan.results.listings import CheckRow

    to = output(output_format, key, quiet, GATE_FORMATS)
    shows_figures = quiet or (key is None and output_format in FIGURES_ALONE)
    rows = []
    for entry, outcome in _outcomes(file, jobs, profiles, Session.figures if shows_figures else Session.answer):
        if isinstance(outcome, list):
            row = CheckRow(
                name=entry.name, result=None, passed=False, exit_code=ExitCode.BAD_INPUT, problems=tuple(outcome)
            )
        else:
            row = gate(outcome, entry.job, strict=strict)
        rows.append(replace(row, file=None if file == "-" else file, line=entry.line))
    _complain(rows)

    emit("check", rows, to)
    raise typer.Exit(exit_code(rows))


def validate(
    file: File,
    jobs: Jobs = None,
    profiles: Profiles = None,
    allocator: Allocator = "simulate",
    output_format: Format = "text",
    key: Print = None,
    quiet: Quiet = False,
) -> None:
    """Compare predictions with the measured cases of FILE, like with like.

    What the allocator reserves is simulated where a case says nothing of it;
    `fit` estimates it then, and simulates it with --allocator simulate.

    \b
    Examples:
      vramplan validate measured.yaml
      vramplan validate measured.yaml --print summary.per_metric.allocated.median

    \b
    Exit codes: 0 all were computed, 2 bad input or a case that cannot be
    computed.
    """
    from vramplan.answers.session import Session
    from vramplan.answers.validation import compare
    from vramplan.cli.output import emit, output
    from vramplan.exit_codes import ExitCode
    from vramplan.results.listings import ValidateRow

    to = output(output_format, key, quiet)
    rows = []
    for entry, outcome in _outcomes(file, jobs, profiles, Session.compared, _settings(allocator)):
        if isinstance(outcome, list):
            rows.append(
                ValidateRow(name=entry.name, result=None, exit_code=ExitCode.BAD_INPUT, problems=tuple(outcome))
            )
        else:
            rows.append(compare(outcome, entry.job))
    _complain(rows)

    emit("validate", rows, to)
    raise typer.Exit(ExitCode.BAD_INPUT if any(row.result is None for row in rows) else ExitCode.OK)


def _settings(text: str) -> Settings | None:
    """What a text says of the allocator; bad ones are errors of the option."""
    from vramplan.errors import UsageError
    from vramplan.job.allocator import BadSetting, settings_of

    try:
        return settings_of(text)
    except BadSetting as error:
        raise UsageError(str(error), key="--allocator", hint=error.hint) from None


def _outcomes(
    file: str,
    wanted: list[str] | None,
    profiles: list[str] | None,
    ask: Callable[[Session, AnyJob], Any],
    allocator: Settings | None = None,
) -> Iterator[tuple[Any, Any]]:
    """(entry, result or problems) for every selected job, in the order of the file.

    `ask` is the question to the session that answers. `allocator` is for the jobs that leave it to an estimate. The
    jobs of one model are answered together, as they share replays, of which a session keeps a few.
    """
    from vramplan.answers.session import Session, opened
    from vramplan.errors import InputError
    from vramplan.job import read_job_file
    from vramplan.values.job import Job

    folders = [Path(folder) for folder in profiles or ()]
    entries = _selected(read_job_file(file, folders), wanted)
    outcomes: dict[int, Any] = {}
    session = opened() or Session()
    groups: dict[str, list[int]] = {}
    for place, entry in enumerate(entries):
        groups.setdefault("" if entry.job is None else entry.job.model.name, []).append(place)
    for place in (one for group in groups.values() for one in group):
        entry = entries[place]
        if entry.job is None:
            outcomes[place] = list(entry.problems)
            continue
        job = entry.job
        if allocator is not None and isinstance(job, Job) and job.allocator is None:
            job = job._replace(allocator=allocator)
        try:
            outcomes[place] = ask(session, job)
        except InputError as error:
            where = {"file": None if file == "-" else file, "line": entry.line}
            outcomes[place] = [p._replace(**where) if p.file is None else p for p in error.problems]
    for place, entry in enumerate(entries):
        yield entry, outcomes[place]


def _selected(entries: list[Any], wanted: list[str] | None) -> list[Any]:
    from fnmatch import fnmatchcase

    from vramplan.errors import UsageError, near_matches

    if not wanted:
        return entries
    wanted = [pattern.replace("[", "[[]") for pattern in wanted]  # * and ? are wildcards, brackets are themselves
    for pattern in wanted:
        if not any(fnmatchcase(entry.name, pattern) for entry in entries):
            hint = near_matches(pattern, [entry.name for entry in entries]) or "the names are in the file"
            name = pattern.replace("[[]", "[")
            raise UsageError(f"no job is called {name!r}", key="--job", hint=hint)
    return [entry for entry in entries if any(fnmatchcase(entry.name, pattern) for pattern in wanted)]


def _complain(rows: list[Any]) -> None:
    """Problems of single jobs on stderr, as those of a whole file are."""
    from vramplan.cli.output import say

    for row in rows:
        for problem in row.problems:
            say(f"error: {row.name}: {problem}")
