"""What `vramplan check` and `vramplan validate` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import typer

from vramplan.answers.fit import known_gpus
from vramplan.answers.gate import exit_code, gate, remedies_in_words
from vramplan.answers.session import Session, opened
from vramplan.answers.validation import compare
from vramplan.cli.output import GATE_FORMATS, emit, output, say
from vramplan.errors import InputError, UsageError, near_matches
from vramplan.exit_codes import ExitCode
from vramplan.job import JobEntry, read_job_file
from vramplan.job.allocator import BadSetting, settings_of
from vramplan.results import FitResult
from vramplan.results.listings import CheckRow, ValidateRow
from vramplan.values.allocator import Settings
from vramplan.values.job import Job
from vramplan.values.textbook import AnyJob

FIGURES_ALONE = ("text", "markdown", "junit", "github")  # formats of check that show figures and reasons


def check(
    file: str,
    jobs: list[str] | None,
    strict: bool,
    remedies: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan check` with the values of its options."""
    to = output(output_format, key, quiet, GATE_FORMATS)
    shows_figures = quiet or (key is None and output_format in FIGURES_ALONE)
    folders = [Path(folder) for folder in profiles or ()]

    def ask(session: Session, job: AnyJob, entry: JobEntry) -> Any:
        if remedies:
            return session.answer(job, lambda: known_gpus(folders), entry.typed)
        return session.figures(job) if shows_figures else session.compared(job)

    rows = []
    for entry, outcome in _outcomes(file, jobs, profiles, ask):
        if isinstance(outcome, list):
            row = CheckRow(
                name=entry.name, result=None, passed=False, exit_code=ExitCode.BAD_INPUT, problems=tuple(outcome)
            )
        else:
            row = gate(outcome, entry.job, strict=strict)
            if remedies:
                row = replace(row, reasons=(*row.reasons, *remedies_in_words(outcome)))
        rows.append(replace(row, file=None if file == "-" else file, line=entry.line))
    _complain(rows)

    emit("check", rows, to)
    raise typer.Exit(exit_code(rows))


def validate(
    file: str,
    jobs: list[str] | None,
    profiles: list[str] | None,
    allocator: str,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan validate` with the values of its options."""
    to = output(output_format, key, quiet)
    rows = []

    def ask(session: Session, job: AnyJob, entry: JobEntry) -> FitResult:
        return session.compared(job)

    for entry, outcome in _outcomes(file, jobs, profiles, ask, _settings(allocator)):
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
    try:
        return settings_of(text)
    except BadSetting as error:
        raise UsageError(str(error), key="--allocator", hint=error.hint) from None


def _outcomes(
    file: str,
    wanted: list[str] | None,
    profiles: list[str] | None,
    ask: Callable[[Session, AnyJob, JobEntry], Any],
    allocator: Settings | None = None,
) -> Iterator[tuple[Any, Any]]:
    """(entry, result or problems) for every selected job, in the order of the file.

    `ask` is the question to the session that answers. `allocator` is for the jobs that leave it to an estimate. The
    jobs of one model are answered together, as they share replays, of which a session keeps a few.
    """
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
            outcomes[place] = ask(session, job, entry)
        except InputError as error:
            where = {"file": None if file == "-" else file, "line": entry.line}
            outcomes[place] = [p._replace(**where) if p.file is None else p for p in error.problems]
    for place, entry in enumerate(entries):
        yield entry, outcomes[place]


def _selected(entries: list[Any], wanted: list[str] | None) -> list[Any]:
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
    for row in rows:
        for problem in row.problems:
            say(f"error: {row.name}: {problem}")
