"""The job that the options of a command describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vramplan.answers.fit import answer, asks_for_itself, known_gpus
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.errors import UsageError
from vramplan.job import JobEntry, build_any_job, build_job, read_one_job
from vramplan.options import table
from vramplan.planner.decision import ALWAYS
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.textbook import AnyJob, TextbookJob

STDIN = "-"


def asked_of(
    config: Sequence[str] | None, job: str | None, program: str | None, version: str | None, rest: tuple[bool, bool]
) -> Any:
    """What `cli.runs.configs.asked_of` makes of these options; None where none is given."""
    if not (config or program or version or rest[0]):
        return None
    return named("vramplan.cli.runs.configs:asked_of")(config, job, program, version, rest)


def job_of(
    given: dict[str, Any], folders: Sequence[Path], written: str | None = None, asked: Any = None
) -> ResolvedJob:
    """The resolved job that the options describe, to be replayed: not one of the runtime textbook.

    `written` is a job of a file, `FILE` or `FILE#NAME`, whose keys the options replace, and `asked` are files of a
    training program. Raises InputError with everything that is wrong.
    """
    if asked is not None:
        read: ResolvedJob = named("vramplan.cli.runs.configs:job_of")(given, folders, asked)
        return read
    if written is None:
        require(given)
        return build_job(as_job(given), profile_dirs=folders)
    job = any_job_of(given, folders, written)
    if isinstance(job, TextbookJob):
        hint = "fit, check, validate and walkthrough know it"
        raise UsageError("textbook has equations and no step to look into", key="runtime", hint=hint)
    return job


def any_job_of(given: dict[str, Any], folders: Sequence[Path], written: str | None = None) -> AnyJob:
    """The same for every runtime, the textbook's too."""
    if written is None:
        require(given)
        return build_any_job(as_job(given), profile_dirs=folders)
    path, name = place_of(written)
    return one_of(read_one_job(path, name, _over(given), folders))


def answer_of(given: dict[str, Any], folders: Sequence[Path], written: str, largest: str | None) -> FitResult:
    """The answer about a job of a file whose keys the options replace; `largest` is what to solve for."""
    over, unknown = _over(given), None
    if largest is not None or asks_for_itself(over):
        over, unknown = named("vramplan.answers.solve:unknown_of")(over, largest)
    path, name = place_of(written)
    entry = read_one_job(path, name, over, folders)

    def known() -> Iterable[Gpu]:
        return known_gpus(folders)

    if unknown is None:
        return answer(one_of(entry), known, None, entry.typed, closer_from=ALWAYS)
    found: FitResult = named("vramplan.answers.solve:solved_answer")(one_of(entry), entry.typed(), unknown, known)
    return found


def one_of(entry: JobEntry) -> AnyJob:
    """The job of an entry that has no problems."""
    assert entry.job is not None
    return entry.job


def _over(given: dict[str, Any]) -> dict[str, Any]:
    """The keys that options replace; `null` takes one away, as it does in a job file."""
    over = as_job(given)
    rows = table.parameters()
    for name, value in given.items():
        if value == "null":
            place = over.setdefault(rows[name].group, {}) if rows[name].group else over
            place[rows[name].name] = None
    return over


def place_of(written: str) -> tuple[str, str | None]:
    """The file and the name that `FILE#NAME` says; a file whose own name has a # is taken as it is."""
    path, hash_sign, name = written.partition("#")
    if not hash_sign or Path(written).is_file():
        return written, None
    while not Path(path).exists() and path != STDIN and "#" in name:
        more, _, name = name.partition("#")
        path = f"{path}#{more}"
    if not name:
        raise UsageError("there is no name behind the #", key="--job", hint=f"{path}, or {path}#NAME")
    return path, name
