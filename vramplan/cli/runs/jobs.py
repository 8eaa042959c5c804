"""The job that the options of a command describe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vramplan.answers.fit import answer, asks_for_itself, known_gpus
from vramplan.catalog import document
from vramplan.catalog.document import Node
from vramplan.cli import named
from vramplan.cli.job_options import as_job, require
from vramplan.errors import UsageError
from vramplan.job import JobEntry, build_any_job, build_job, read_one_job
from vramplan.job.given.spelled import counted
from vramplan.options import table
from vramplan.planner.decision import ALWAYS
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.textbook import AnyJob, TextbookJob

STDIN = "-"
PARALLEL, DATA = "parallel", "data"


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


def answer_of(
    given: dict[str, Any],
    folders: Sequence[Path],
    written: str,
    largest: str | None,
    enough: int | None = None,
    opening: Callable[[FitResult], None] | None = None,
) -> FitResult:
    """The answer about a job of a file whose keys the options replace; `largest` is what to solve for.

    `enough`: how many remedies are of use. `opening`: who is told the answer without them first.
    """
    over, unknown = _over(given), None
    if largest is not None or asks_for_itself(over):
        over, unknown = named("vramplan.answers.solve:unknown_of")(over, largest)
    path, name = place_of(written)
    entry = read_one_job(path, name, over, folders)

    def known() -> Iterable[Gpu]:
        return known_gpus(folders)

    if unknown is None:
        job = one_of(entry)
        return answer(job, known, None, entry.typed, closer_from=ALWAYS, enough=enough, at_once=True, opening=opening)
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


HOW = (
    *("activation_checkpointing", "checkpoint_reentrant", "compile", "offload", "micro_batch_size"),
    *("gradient_accumulation_steps", "optimizer_implementation"),
)
"""What a search for plans varies, or follows from what it varies: of a file it is not taken."""

_HALF = re.compile(r"(amp|fsdp|mixed)-(bf16|fp16)")


def run_of(given: dict[str, Any], folders: Sequence[Path], written: str) -> dict[str, Any]:
    """What a job of a file trains, without how: the batch of a step over all devices is kept, its parts are open."""
    over = _over(given)
    trained = {key: value for key, value in over.items() if key not in HOW and key != PARALLEL}
    if DATA in over.get(PARALLEL, {}):
        trained[PARALLEL] = {DATA: over[PARALLEL][DATA]}
    path, name = place_of(written)
    entry = read_one_job(path, name, trained, folders)  # how it is run is asked about, and need not go with the file's
    job = one_of(entry)
    assert entry.keys is not None
    known = {row.group or row.name for row in table.parameters().values()}  # without what it expects, and was measured
    keys: dict[str, Any] = {key: value for key, value in plain(entry.keys).items() if key in known}
    if isinstance(job, ResolvedJob):
        for key in ("model", "gpu", "runtime"):
            beside = Path(path).parent / str(keys.get(key))
            if isinstance(keys.get(key), str) and beside.is_file():  # read from where the file is
                keys[key] = str(beside)
        if counted(str(keys.get("gpu"))) is not None:
            keys["gpu"] = job.gpu.name
        left_open(keys, job, flat(over))
    return keys


def left_open(keys: dict[str, Any], job: ResolvedJob, typed: Mapping[str, Any]) -> None:
    """Take from the keys of a file what a search varies, but for what was `typed` as an option."""
    split = job.split
    replica = 1 if split is None else split.tensor * split.pipeline * split.context
    if job.micro_batch_size is not None and job.gradient_accumulation_steps is not None:
        batch = job.micro_batch_size * job.gradient_accumulation_steps * job.data_parallel_size
        keys.setdefault("global_batch_size", batch)
    for key in HOW:
        if key not in typed:
            keys.pop(key, None)
    if keys.get("loss") != "dpo" and "loss" not in typed:
        keys.pop("loss", None)
    half = _HALF.fullmatch(str(keys.get("precision")))
    if half and "precision" not in typed:
        keys["precision"] = half[2]  # which word it is follows from how the model is shared
    keys["parallel"] = {key: value for key, value in keys.get("parallel", {}).items() if f"parallel.{key}" in typed}
    keys["parallel"]["data"] = job.data_parallel_size * replica


def plain(node: Node) -> Any:
    """What a part of a file says: its words as text."""
    if isinstance(node, document.Mapping):
        return {key: plain(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, document.Sequence):
        return [plain(item) for item in node.items]
    return None if node.is_null else node.text


def flat(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a job with those of its groups by their whole names."""
    found: dict[str, Any] = {}
    for key, value in keys.items():
        if isinstance(value, Mapping) and key in table.GROUPS:
            found.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            found[key] = value
    return found
