"""What `vramplan check` and `vramplan validate` do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import typer

from vramplan.answers.baseline import Baseline, Tolerance, baseline_from, compared, gone
from vramplan.answers.fit import known_gpus
from vramplan.answers.gate import exit_code, gate, remedies_in_words
from vramplan.answers.session import Session, opened
from vramplan.answers.validation import compare
from vramplan.catalog.text import STDIN_NAMES, read_text
from vramplan.cli import named
from vramplan.cli.output import GATE_FORMATS, emit, output, say
from vramplan.errors import InputError, Problem, UsageError, near_matches
from vramplan.exit_codes import ExitCode
from vramplan.job import JobEntry, read_job_file
from vramplan.job.machine.allocator import BadSetting, settings_of
from vramplan.report.numbers import count
from vramplan.results import FitResult
from vramplan.results.listings import CheckRow, CheckSummary, ValidateRow
from vramplan.tuples import NamedTuple
from vramplan.units import parse_size_bytes
from vramplan.values.allocator import Settings
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import AnyJob

MOST_OF_BASELINE = 256 * 2**20  # bytes; the answers about 1,000 jobs take 12 MiB
FIGURES_ALONE = ("text", "markdown", "junit", "github")  # formats of check that show figures and reasons


def check(
    files: list[str],
    jobs: list[str] | None,
    strict: bool,
    remedies: bool,
    baseline: str | None,
    tolerance: str | None,
    gpu: str | None,
    gpus: int | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    profiles: list[str] | None,
    output_format: str,
    key: str | None,
    quiet: bool,
) -> None:
    """Run `vramplan check` with the values of its options."""
    to = output(output_format, key, quiet, GATE_FORMATS)
    shows_figures = quiet or (key is None and output_format in FIGURES_ALONE)
    folders = [Path(folder) for folder in profiles or ()]
    before = _before(baseline, tolerance)

    def ask(session: Session, job: AnyJob, entry: JobEntry) -> Any:
        if remedies:
            return session.answer(job, lambda: known_gpus(folders), entry.typed)
        if not shows_figures:
            return session.compared(job)
        figures = session.figures(job)
        grown = before is not None and before.may_have_grown(entry.name, figures.peak.device_bytes)
        return session.compared(job) if grown else figures  # the causes of a growth are in the whole answer

    others = _Others(gpu, gpus, program, version, ignore_unknown, quiet)
    rows = []
    for file, entry, outcome in _outcomes(files, jobs, profiles, ask, others=others):
        if isinstance(outcome, list):
            row = CheckRow(
                name=entry.name, result=None, passed=False, exit_code=ExitCode.BAD_INPUT, problems=tuple(outcome)
            )
        else:
            row = gate(outcome, entry.job, strict=strict)
            if remedies:
                row = replace(row, reasons=(*row.reasons, *remedies_in_words(outcome)))
        row = replace(row, file=None if file == "-" else file, line=entry.line)
        rows.append(row if before is None else compared(row, before))
    _complain(rows)
    missing = None
    if before is not None:
        missing = () if jobs else gone(rows, before)  # who selects jobs leaves the others out on purpose
        for name in missing:
            say(f"note: {name} is in the baseline and no more in the files")

    emit("check", rows, to, summary=CheckSummary.of(rows, missing))
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
        if isinstance(job, ResolvedJob):
            job = job._replace(allocator_offered=None)  # the option says how it is looked at
        return session.compared(job)

    for _, entry, outcome in _outcomes([file], jobs, profiles, ask, _settings(allocator)):
        if isinstance(outcome, list):
            rows.append(
                ValidateRow(name=entry.name, result=None, exit_code=ExitCode.BAD_INPUT, problems=tuple(outcome))
            )
        else:
            rows.append(compare(outcome, entry.job))
    _complain(rows)

    emit("validate", rows, to)
    raise typer.Exit(ExitCode.BAD_INPUT if any(row.result is None for row in rows) else ExitCode.OK)


def _before(path: str | None, tolerance: str | None) -> Baseline | None:
    """The baseline of a file. Raises InputError if it cannot be read."""
    if path is None:
        if tolerance is not None:
            raise UsageError("means nothing without --baseline", key="--tolerance", hint="--baseline FILE")
        return None
    share = Tolerance() if tolerance is None else _tolerance(tolerance)
    try:
        document = json.loads(read_text(path, most_bytes=MOST_OF_BASELINE))
    except RecursionError:
        raise UsageError(f"{path} is not an answer: it is nested too deep", key="--baseline") from None
    except ValueError as error:
        hint = "the answer of vramplan check --format json"
        raise UsageError(f"{path} is not JSON: {error}", key="--baseline", hint=hint) from None
    return baseline_from(document, path, share)


def _tolerance(text: str) -> Tolerance:
    """`2%`, `0.02` or `100 MiB`."""
    number, percent = (text.strip().removesuffix("%"), text.strip().endswith("%"))
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        try:
            return Tolerance(0.0, parse_size_bytes(text, rounding="down", allow_zero=True))
        except InputError:
            share = -1.0
    if not 0 <= share <= (10 if percent else 1):
        raise UsageError(f"{text!r} is not a tolerance", key="--tolerance", hint="2%, 0.02, or a size as in '100 MiB'")
    return Tolerance(share)


def _settings(text: str) -> Settings | None:
    """What a text says of the allocator; bad ones are errors of the option."""
    try:
        return settings_of(text)
    except BadSetting as error:
        raise UsageError(str(error), key="--allocator", hint=error.hint) from None


def _outcomes(
    files: list[str],
    wanted: list[str] | None,
    profiles: list[str] | None,
    ask: Callable[[Session, AnyJob, JobEntry], Any],
    allocator: Settings | None = None,
    others: _Others | None = None,
) -> Iterator[tuple[str, Any, Any]]:
    """(file, entry, result or problems) for every selected job, in the order of the files.

    `ask` is the question to the session that answers. `allocator` is for the jobs that leave it to an estimate. The
    jobs of one model are answered together, as they share replays, of which a session keeps a few.
    """
    folders = [Path(folder) for folder in profiles or ()]
    read = _read(files, folders, others)
    entries = _selected(read, wanted)
    of = {id(entry): file for file, entry in read}
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
        if allocator is not None and isinstance(job, ResolvedJob) and job.allocator is None:
            job = job._replace(allocator=allocator)
        try:
            outcomes[place] = ask(session, job, entry)
        except InputError as error:
            file = of[id(entry)]
            where: dict[str, Any] = {"file": None if file == "-" else file, "line": entry.line}
            outcomes[place] = [p._replace(**where) if p.file is None else p for p in error.problems]
    for place, entry in enumerate(entries):
        yield of[id(entry)], entry, outcomes[place]


class _Others(NamedTuple):
    """How files of training programs are read, among job files."""

    gpu: str | None
    gpus: int | None
    program: str | None
    version: str | None
    ignore_unknown: bool
    quiet: bool

    def entries(self, files: list[str], folders: list[Path]) -> list[tuple[str, JobEntry]]:
        """(file, entry) of the jobs that they describe. Raises UsageError for options that mean nothing."""
        if not files:
            for name, value in (
                ("--gpu", self.gpu),
                ("--gpus", self.gpus),
                ("--from", self.program),
                ("--engine-version", self.version),
                ("--ignore-unknown", self.ignore_unknown),
            ):
                if value:
                    hint = "`vramplan fit FILE#NAME -g GPU` judges a job of a job file on another GPU"
                    raise UsageError("is for files of training programs, and there is none", key=name, hint=hint)
            return []
        over: dict[str, Any] = {} if self.gpu is None else {"gpu": self.gpu}
        if self.gpus is not None:
            over["parallel"] = {"data": self.gpus}
        runs = "vramplan.cli.runs.configs"
        asked = named(f"{runs}:GivenFiles")(files, self.program, self.version, self.ignore_unknown, self.quiet)
        entries: list[JobEntry] = named(f"{runs}:entries_of")(files, over, folders, asked)
        of = {Path(file).stem: file for file in files}
        return [(of[entry.name], entry) for entry in entries]


def _is_config(file: str) -> bool:
    """Whether a file is of a training program; our own have a key `jobs`."""
    is_stdin = file in STDIN_NAMES
    if not is_stdin and not os.path.isfile(file):
        return False
    suffix = os.path.splitext(file)[1].lower()
    if suffix in (".toml", ".sh", ".bash", ".py", ".ipynb", ".slurm", ".sbatch", ".md"):
        return True
    if suffix not in (".yaml", ".yml", ".json") and not is_stdin:
        return False
    try:
        text = read_text(file, allow_stdin=True)
    except InputError:
        return False  # said where it is read
    keys = set(re.findall(r"""(?m)(?:^|[{,]) *["']?([A-Za-z_]\w*)["']? *:""", text))
    if keys & {"jobs", "version", "defaults"} or (not keys and not is_stdin):
        return False
    known: bool = named("vramplan.cli.runs.configs:is_known")(file)
    return known


def _read(files: list[str], folders: list[Path], others: _Others | None = None) -> list[tuple[str, JobEntry]]:
    """(file, entry) of all jobs. Raises InputError with the problems of all broken files."""
    met: set[str] = set()
    for file in files:
        place = file
        if file not in STDIN_NAMES:
            with suppress(OSError, ValueError):  # a name that no file has is said where it is read
                place = os.path.realpath(file)
        if place in met:
            what = "standard input" if file in STDIN_NAMES else file
            raise UsageError(f"{what} is named twice", key="FILE", hint="name each file once")
        met.add(place)
    read: list[tuple[str, JobEntry]] = []
    problems: list[Problem] = []
    configs = [file for file in files if others is not None and _is_config(file)]
    if others is not None:
        read += others.entries(configs, folders)
    for file in files:
        if file in configs:
            continue
        try:
            read += [(file, entry) for entry in read_job_file(file, folders)]
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return read


def _selected(read: list[tuple[str, JobEntry]], wanted: list[str] | None) -> list[JobEntry]:
    """The jobs whose names match, or whose files and names do as in `FILE#NAME`."""
    if not wanted:
        return [entry for _, entry in read]
    wanted = [pattern.replace("[", "[[]") for pattern in wanted]  # * and ? are wildcards, brackets are themselves

    def selects(pattern: str, file: str, entry: JobEntry) -> bool:
        return fnmatchcase(entry.name, pattern) or fnmatchcase(f"{file}#{entry.name}", pattern)

    for pattern in wanted:
        if not any(selects(pattern, file, entry) for file, entry in read):
            name = pattern.replace("[[]", "[")
            names = [entry.name for _, entry in read]
            hint = near_matches(name, names) or "the names are in the file"
            if any(one.startswith(f"{name} (") for one in names):
                hint = f"'{name} (*' selects the jobs of its matrix"
            raise UsageError(f"no job is called {name!r}", key="--job", hint=hint)
    return [entry for file, entry in read if any(selects(pattern, file, entry) for pattern in wanted)]


def _complain(rows: list[Any]) -> None:
    """Problems of single jobs on stderr, as those of a whole file are: each once, with the jobs that have it."""
    named: dict[str, list[str]] = {}
    for row in rows:
        for problem in row.problems:
            named.setdefault(str(problem), []).append(row.name)
    for problem, names in named.items():
        more = "" if len(names) == 1 else f" and {count(len(names) - 1, 'more job')}"
        say(f"error: {names[0]}{more}: {problem}")
