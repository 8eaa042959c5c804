"""The Python API: `fit` answers about a `Job` as `vramplan fit` does. Nothing prints, nothing exits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from operator import index
from pathlib import Path
from typing import Any, TypeAlias, Unpack, overload

from vramplan.answers.session import Session, opened
from vramplan.errors import UsageError
from vramplan.job import check_keys
from vramplan.job.given.keys import JobFields, JobKeys, PathText
from vramplan.results import FitResult
from vramplan.results.frozen import FrozenDict

Folders: TypeAlias = Iterable[PathText] | PathText


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Job(JobFields):
    """The description of one training run, in the keys of the job format: frozen, hashable, picklable.

    A key that is None is left out: its default is taken, or it is chosen, when the job is answered. What can be said
    without looking anything up is checked here, so that a misspelt key or word is found where it is written: raises
    InputError with every problem. `dataclasses.replace(job, gpu="h100-80gb")` gives another job.

    (`vramplan.values.job.ResolvedJob` is what the program makes of it: profiles read, defaults taken.)
    """

    def __init__(self, **keys: Unpack[JobKeys]) -> None:
        given = {key: _settled(value) for key, value in keys.items() if value is not None}
        check_keys(given)
        for field in fields(self):
            object.__setattr__(self, field.name, given.get(field.name))

    def to_dict(self) -> dict[str, Any]:
        """The keys that are given, in the order of the job format: a job of a job file, but for its name."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {key: value for key, value in values if value is not None}

    def __repr__(self) -> str:
        return f"Job({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"


@overload
def fit(
    job: Job,
    /,
    *,
    max: str | None = None,
    gpus: str | int | None = None,
    profiles: Folders = (),
    session: Session | None = None,
) -> FitResult: ...
@overload
def fit(
    *,
    max: str | None = None,
    gpus: str | int | None = None,
    profiles: Folders = (),
    session: Session | None = None,
    **keys: Unpack[JobKeys],
) -> FitResult: ...
def fit(
    job: Job | None = None,
    /,
    *,
    max: str | None = None,
    gpus: str | int | None = None,
    profiles: Folders = (),
    session: Session | None = None,
    **keys: Any,
) -> FitResult:
    """Whether a training run fits in GPU memory, what fills it, and how to run it: the answer of `vramplan fit`.

    `fit(job)`, or `fit(model="gpt2-xl", gpu="v100", ...)` for short. `profiles`: folders of profiles that are searched
    before the shipped ones. A run that does not fit is an answer like any other; raises InputError, with every problem
    that was found, for what cannot be computed. Threads and processes may share it.

    `max`: what to solve for, "sequence", "micro-batch", "rank" or "layers": the answer is that at the largest value
    that fits, which `solved` names. `gpus`: the data-parallel devices, or "auto" for the fewest that fit.

    `session`: keeps the replays and the profiles of the answers before, so that many answers take less time; by default
    the one that is open in this thread (`session.open()`). Without one nothing is kept.
    """
    if job is None:
        job = Job(**keys)
    elif keys:
        raise TypeError("fit() takes a Job or the keys of one, not both; dataclasses.replace(job, ...) changes a job")
    elif not isinstance(job, Job):
        raise TypeError(f"fit() takes a vramplan.Job or the keys of one, not a {type(job).__name__}")
    folders = _folders(profiles)
    asked = job.to_dict()
    if gpus is not None:
        parallel = asked.get("parallel", {})
        if "data" in parallel:
            raise TypeError("fit() takes gpus or parallel={'data': ...}, not both")
        asked["parallel"] = {**parallel, "data": gpus}
    return (session or opened() or Session()).fit(asked, folders, largest=max)


def _folders(profiles: Any) -> list[Path]:
    """The folders that `profiles` names. Raises UsageError for what is no folder and no list of folders."""
    given = [profiles] if isinstance(profiles, str | os.PathLike) else profiles
    if isinstance(given, Iterable) and not isinstance(given, bytes | bytearray):
        folders = list(given)
        if all(isinstance(folder, str | os.PathLike) for folder in folders):
            return [Path(folder) for folder in folders]
    raise UsageError(f"expected a folder or several, not {profiles!r:.60}", key="profiles", hint="profiles=['DIR']")


def _settled(value: Any) -> Any:
    """The value frozen all the way down, paths as text, numbers of other libraries as Python's."""
    if isinstance(value, Mapping):
        return FrozenDict((key, _settled(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(_settled(item) for item in value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    return index(value) if hasattr(value, "__index__") else value
