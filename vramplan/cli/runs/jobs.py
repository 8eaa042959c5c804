"""The job that the options of a command describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramplan.cli.job_options import as_job, require
from vramplan.errors import UsageError
from vramplan.job import build_any_job, build_job, read_one_job
from vramplan.values.job import Job
from vramplan.values.textbook import AnyJob, TextbookJob

STDIN = "-"


def job_of(given: dict[str, Any], folders: Sequence[Path], written: str | None = None) -> Job:
    """The resolved job that the options describe, to be replayed: not one of the runtime textbook.

    `written` is a job of a file, `FILE` or `FILE#NAME`, whose keys the options replace. Raises InputError with
    everything that is wrong.
    """
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
    return read_one_job(path, name, as_job(given), folders)


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
