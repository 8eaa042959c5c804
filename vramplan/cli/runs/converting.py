"""What `vramplan convert` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vramplan.answers.fit import describe
from vramplan.cli.output import output
from vramplan.cli.replaced import meaningless
from vramplan.cli.runs.configs import GivenFiles, keys_of, over_of, placed, read_of, tell
from vramplan.cli.runs.emit import Emission, emission_of, files_of, out
from vramplan.cli.runs.jobs import flat
from vramplan.configs.asked import Writer, nested
from vramplan.configs.carried import MAY_BE_LEFT_OUT, carried, changes, decisive
from vramplan.configs.catalogue import Catalogue
from vramplan.configs.writers import MODULES
from vramplan.configs.writing import Unsaid, WrittenFiles, causes, nearest_said, unsaid, word_of
from vramplan.errors import InputError, Problem, UsageError
from vramplan.job import build_job, job_to_dict
from vramplan.options import table
from vramplan.options.words import pattern_word
from vramplan.planner.decision import ALWAYS, decide
from vramplan.results.reading import ReadJob
from vramplan.values.job import ResolvedJob

DATA = "parallel.data"
STAND_IN = "h100-80gb"
"""The GPU of a conversion that names none: nothing is judged, and no setting is chosen for it."""


def convert(
    given: dict[str, Any],
    config: list[str] | None,
    engine: str | None,
    program: str | None,
    version: str | None,
    ignore_unknown: bool,
    folder: str | None,
    force: bool,
    profiles: list[str] | None,
    quiet: bool,
) -> None:
    """Run `vramplan convert` with the values of its options."""
    if engine is None:
        raise UsageError("is missing", key="--to", hint=", ".join(MODULES))
    emission = emission_of(engine, folder, force, output("text", None, quiet), "--to")
    assert emission is not None
    if not config:
        name = given.get("model")
        said = "is missing"
        if name is not None:
            is_there = os.path.exists(name)
            said = f"{name!r} is no file of a training program" if is_there else f"there is no file {name!r}"
        raise UsageError(said, key="FILE", hint="vramplan convert axolotl.yaml --to trl")
    folders = [Path(one) for one in profiles or ()]
    asked = GivenFiles(config, program, version, ignore_unknown, quiet)
    judged = given.get("gpu") is not None
    given = {**given, "gpu": given.get("gpu") or STAND_IN}
    emission = emission.of(given, folders, asked)
    without: dict[str, Any] = {}
    while True:
        try:
            files = _converted_files(given, folders, asked, emission, without, judged=judged)
        except InputError as error:
            nearest = error.nearest if isinstance(error, Unsaid) else {}
            named = {one.key for one in error.problems} | nearest.keys()
            known = sorted(left_to_the_program(given, folders, asked) & named)
            more = {key: None for key in known if key not in without}
            # what the other program has by its reader, and a job without the key has not
            more |= {key: nearest[key] for key in known if without.get(key, key) is None and nearest.get(key)}
            if not more:
                raise
            without |= more
            asked = asked._replace(quiet=True)  # it is said already
            continue
        out(files, emission)
        return


def _converted_files(
    given: dict[str, Any],
    folders: Sequence[Path],
    asked: GivenFiles,
    emission: Emission,
    without: Mapping[str, Any],
    *,
    judged: bool,
) -> WrittenFiles:
    """The files of another program, without what the program of the given ones has by itself."""
    job, read, lost = converted(given, folders, asked, emission.writer, without)
    if not judged:
        for key in ("micro_batch_size", "activation_checkpointing"):
            if getattr(job, key) is None:
                hint = f"{table.find(key).option}, or --gpu, for which it is chosen"
                raise UsageError(f"leaves {key} open", key=read.files[-1], hint=hint)
    result = describe(decide(job, closer_from=ALWAYS), with_remedies=False)
    allocator = job_to_dict(job)["allocator"]  # an answer that looks closer has another one
    result = result._replace(job={**result.job, "allocator": allocator})
    echo = _echoed(folders)
    try:
        echo(flat(result.job))
    except InputError as error:  # of what goes with a model by its name, and not with its sizes
        raise _with_nearest(error, flat(result.job), echo, Catalogue(folders)) from None
    return files_of(result, emission.writer, folders, "--to", lost, judged=judged, checkpoint=emission.checkpoint)


def _echoed(folders: Sequence[Path]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The job of dotted keys, every default explicit."""

    def echo(keys: Mapping[str, Any]) -> dict[str, Any]:
        return flat(job_to_dict(build_job(nested(keys), profile_dirs=folders)))

    return echo


def converted(
    given: dict[str, Any],
    folders: Sequence[Path],
    asked: GivenFiles,
    writer: Writer,
    without: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[ResolvedJob, ReadJob, list[str]]:
    """The job of the files for the program of a writer, and what is told of it: what that program does otherwise.

    `without`: keys that the program of the files has by itself, and that of the new ones has no setting for; with a
    value it is what the new ones mean. Raises InputError where the job would be another one.
    """
    over = over_of(given)
    read = read_of(over, folders, asked)
    keys = flat(keys_of(read, over))
    before, told = keys.get("runtime"), []

    echo = _echoed(folders)
    typed, of_files = flat(over), flat(read.job)
    was = None
    for own in (keys, {**keys, **{key: value for key, value in of_files.items() if typed.get(key) is not None}}):
        with suppress(InputError):  # options may make a job that the other program alone can run
            was = echo(own)
            break
    keys = {key: value for key, value in keys.items() if key not in without}
    keys |= {key: value for key, value in without.items() if value is not None}
    if before not in writer.runtimes and given.get("runtime") is None:
        keys["runtime"] = writer.runtimes[0]
        told.append(f"the runtime is {keys['runtime']} now; that of {read.program} is {before}, and needs other memory")
    lacking: list[Problem] = []
    for key, near in ((key, words.get(str(keys.get(key)))) for key, words in writer.lacks.items()):
        if near is not None:
            lacking.append(unsaid(writer.name, key, keys[key], near)._replace(key="--to"))
            keys = {one: value for one, value in keys.items() if one not in meaningless(keys, {key: near})} | {
                key: near
            }
    with placed(read, over):
        try:
            if was is not None and (told or without):
                said = {key: value for key, value in typed.items() if key != DATA}  # which may count all GPUs
                keys = carried(keys, {**was, **said}, echo, without)
            job = build_job(nested(keys), profile_dirs=folders)
        except InputError as error:
            found = _with_nearest(error, keys, echo, Catalogue(folders))
            raise InputError([*lacking, *found.problems]) from None
    if lacking:
        raise InputError(lacking)
    differing = {} if was is None else changes(was, flat(job_to_dict(job)))
    differing = {key: pair for key, pair in differing.items() if key not in typed}
    if lost := causes({key: differing[key] for key in decisive(differing)}):
        problems = [unsaid(writer.name, key, *differing[key])._replace(key="--to") for key in lost]
        raise Unsaid(problems, {key: now for key, (_, now) in lost.items()})
    tell(read, asked)
    if differing:
        pairs = (f"{key}={word_of(now)} ({word_of(one)} in {read.program})" for key, (one, now) in differing.items())
        told.append(f"decided by {writer.name} itself: {', '.join(pairs)}")
    if read.without_effect:
        left = ", ".join(dict.fromkeys(source.key for source in read.without_effect))
        told.append(f"not carried over, as they change neither memory nor time: {left}")
    return job, read, told


def _with_nearest(
    error: InputError,
    keys: Mapping[str, Any],
    echo: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    catalogue: Catalogue,
) -> InputError:
    """What another program cannot run, each with what it has instead."""
    left, found, told = dict(keys), error, dict.fromkeys(error.problems)
    for _ in range(MOST_NAMED):  # what goes may leave others without what they belong to
        told |= dict.fromkeys(
            one for one in found.problems if one.key and left.get(one.key, one) == keys.get(one.key, left)
        )
        named = {problem.key for problem in found.problems if problem.key}
        more = _replaced(named, keys, left, echo, catalogue)
        if more is None:  # nothing is near to a model that is not known
            return InputError(told | dict.fromkeys(found.problems))
        gone = tuple(named - more.keys())
        fewer = {key: value for key, value in left.items() if key not in gone and not key.startswith(_below(gone))}
        fewer |= more
        if fewer == left:  # what is wrong follows from others: the program's own then
            fewer = {key: value for key, value in left.items() if key in OF_ANY_PROGRAM}
        if fewer == left:
            return _with_causes(error, keys, echo)
        left = fewer
        try:
            nearest = echo(left)
            break
        except InputError as other:
            found = other
    else:
        return error
    following = _following(keys, nearest)
    each = {one.key: one for one in reversed(told) if one.key not in following and _is_said(one.key, keys)}
    if not each:
        return _with_causes(error, keys, echo)
    return InputError(_nearer(problem, keys, nearest) for problem in reversed(each.values()))


def _is_said(key: str | None, keys: Mapping[str, Any]) -> bool:
    """Whether a key, the group of keys that it is, or the model that it is of, is among the keys."""
    return key is not None and (
        key in keys or any(one.startswith(f"{key}.") for one in keys) or key.partition(".")[0] == "model"
    )


def _with_causes(
    error: InputError, keys: Mapping[str, Any], echo: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> InputError:
    """What another program cannot run, though none of the keys says it: each key without which it could."""
    found = []
    try:
        own = echo({key: value for key, value in keys.items() if key in OF_ANY_PROGRAM})
    except InputError:
        return error
    for key in (one for one in keys if one not in OF_ANY_PROGRAM and own.get(one) != keys[one]):
        left: Collection[str | None] = ()
        try:
            echo({one: value for one, value in keys.items() if one != key})
        except InputError as other:
            left = {problem.key for problem in other.problems}
        found += [
            one._replace(key=key, message=f"{word_of(keys[key])}: {one.message}", hint=nearest_said(key, own.get(key)))
            for one in error.problems
            if one.key not in left
        ]
    return InputError(found) if found else error


def _replaced(
    named: Collection[str],
    keys: Mapping[str, Any],
    left: Mapping[str, Any],
    echo: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    catalogue: Catalogue,
) -> dict[str, Any] | None:
    """What stands in the place of keys that are refused and that each program has; None where nothing can."""
    found: dict[str, Any] = {}
    if any(one.partition(".")[0] == "model" for one in named):
        if left.get("model") != keys.get("model"):
            return None
        of_all = {key: value for key, value in left.items() if key in OF_ANY_PROGRAM}
        for name in catalogue.nearest_to(left["model"])[:MOST_MODELS]:
            with suppress(InputError):
                echo({**of_all, "model": name})
                found["model"] = name
                break
        else:
            return None
    for key in named & NEAREST.keys():
        if left.get(key) != keys.get(key):
            continue
        for word in NEAREST[key].get(pattern_word(str(keys.get(key))), ()):
            try:
                echo({**left, **found, key: word})
            except InputError as error:
                if any(problem.key == key for problem in error.problems):
                    continue
            found[key] = word
            break
    return found


SHARDING = "parallel.sharding"
_BLOCKS = dict.fromkeys(("selective", "selective-op", "selective-layer:K", "sqrt", "every:K", "optimal"), ("full",))
NEAREST: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    SHARDING: {
        "zero3": ("fsdp",),
        "zero2": ("fsdp-grad-op", "fsdp"),
        "zero1": ("fsdp-grad-op", "fsdp"),
        "fsdp": ("zero3",),
        "fsdp-grad-op": ("zero2",),
        "distributed-optimizer": ("zero1", "fsdp-grad-op"),
    },
    "activation_checkpointing": {**_BLOCKS, "full": ("selective", "none")},
}
"""Words of other programs for nearly the same, the nearest first: of what no program decides by itself."""

MOST_MODELS = 40  # models that are tried, of which few programs have none


def _following(keys: Mapping[str, Any], nearest: Mapping[str, Any]) -> frozenset[str]:
    """Keys that are wrong because what they belong to is another value, which is told already."""
    heads = (SHARDING, "loss", *(f"{group}.{head}" for group, head in table.HEADS.items()))
    other = {key: nearest.get(key) for key in heads if key in keys and nearest.get(key) != keys[key]}
    return meaningless(keys, other)


def _nearer(problem: Problem, keys: Mapping[str, Any], nearest: Mapping[str, Any]) -> Problem:
    """A problem with what a program has in the place of a value; one of a group of keys stays as it is."""
    key = problem.key
    if key is None or any(one.startswith(f"{key}.") and value for one, value in nearest.items()):
        return problem
    key = f"{key}.{table.HEADS[key]}" if key in table.HEADS else "model" if key.startswith("model.") else key
    near, is_group = nearest.get(key), any(one.startswith(f"{problem.key}.") for one in keys)
    return problem if near == keys.get(key) and not is_group else problem._replace(hint=nearest_said(key, near))


MOST_NAMED = 6  # keys, of which few need others
OF_ANY_PROGRAM = frozenset(("runtime", "model", "sequence_length", "target_length", "micro_batch_size", "gpu"))
"""Keys that each program has, with which it runs as it does by itself."""


def _below(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{group}." for group in groups)


def left_to_the_program(given: dict[str, Any], folders: Sequence[Path], asked: GivenFiles) -> frozenset[str]:
    """Keys that need no setting in other files, as no setting of these gives them, nor an option."""
    over = over_of(given)
    read = read_of(over, folders, asked)
    said = {one.key for one in read.values if not all(source.is_default for source in one.sources)}
    return MAY_BE_LEFT_OUT - said - flat(over).keys()
