"""Gate files and validation files: `version`, `defaults` and `jobs`; and a single job from options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence as SequenceABC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramplan.catalog import document, text
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Fields, Sink, ordered
from vramplan.engines import imported
from vramplan.errors import InputError, Problem, near_matches
from vramplan.job import on_demand
from vramplan.job.given.keyed import root_of
from vramplan.job.given.read import RawJob, read_job
from vramplan.job.given.spelled import with_kind
from vramplan.job.lookup import Catalog
from vramplan.job.resolve import resolve
from vramplan.options import words
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.textbook import AnyJob, TextbookJob

if TYPE_CHECKING:
    from vramplan.job.typed import Typed

VERSION = 1
MOST_NAMED = 8  # jobs of a file in a hint
MAX_PROBLEMS_READ = 1000  # then the file is hopeless, and reading on would only take time
MATRIX = "matrix"
_TOP = ("version", "defaults", "jobs")


class JobEntry(NamedTuple):
    """One job of a file: either `job`, or the problems for which it cannot be computed."""

    name: str
    job: AnyJob | None
    problems: tuple[Problem, ...]
    line: int | None
    keys: Mapping | None = None
    """As it stands in the file, defaults of the file included."""
    catalog: Catalog | None = None

    def typed(self) -> Typed:
        """What gives the job with a change of its keys."""
        found: Typed = imported("vramplan.job.typed:Typed")(self.keys, self.catalog, in_file=True)
        return found


def build_job(
    raw: MappingABC[str, Any],
    *,
    where: str | None = None,
    profile_dirs: SequenceABC[Path] = (),
    base_dir: Path | None = None,
) -> ResolvedJob:
    """The job that the keys of `raw` describe, in the words of the job format.

    Values have their Python types or are text as an option has it ("4" is a number where a number is due, and a GPU may
    be a bare size).
    `where`: what the problems name as their file; `base_dir`: from where relative paths are read first. Raises
    InputError with every problem, and for `runtime: textbook`, which `build_any_job` takes: its jobs are not replayed.
    """
    job = build_any_job(raw, where=where, profile_dirs=profile_dirs, base_dir=base_dir)
    if isinstance(job, TextbookJob):
        hint = "fit, check, validate and walkthrough know it"
        raise InputError([Problem("textbook has equations and no step to look into", "runtime", hint, where)])
    return job


def build_any_job(
    raw: MappingABC[str, Any],
    *,
    where: str | None = None,
    profile_dirs: SequenceABC[Path] = (),
    base_dir: Path | None = None,
    catalog: Catalog | None = None,
) -> AnyJob:
    """The same for every runtime, the textbook's too. `catalog`: of many jobs, which reads each profile once."""
    sink = Sink(where)
    job = _resolved(_read(raw, sink), Catalog(profile_dirs, base_dir) if catalog is None else catalog)
    sink.raise_all()
    assert job is not None
    return job


def _resolved(raw: RawJob, catalog: Catalog) -> AnyJob | None:
    """The job with every default explicit, for a replay or for the equations; None where something is wrong with it."""
    if raw.runtime == words.TEXTBOOK:
        from vramplan.job.textbook import resolve_textbook  # the equations and their checks are large

        return resolve_textbook(raw, catalog)
    return resolve(raw, catalog)


def check_keys(raw: MappingABC[str, Any]) -> None:
    """What is wrong with the keys of a job in themselves, before anything is looked up: names, types, words.

    Raises InputError with every problem.
    """
    sink = Sink(None)
    _read(raw, sink)
    sink.raise_problems()


def _read(raw: MappingABC[str, Any], sink: Sink) -> RawJob:
    return read_job(Fields(root_of(raw, sink), sink), in_file=False)


def read_job_file(path: Path | str, profile_dirs: SequenceABC[Path] = ()) -> list[JobEntry]:
    """The jobs of a file, in its order. `-` and `/dev/stdin` are standard input.

    Raises InputError when the file itself is broken: its syntax, unknown or duplicate keys, types, words that nobody
    knows, names. A job with something that is not modelled or not found has problems in its entry, and the others are
    still answered.
    """
    loaded = document.load(path, allow_stdin=True)
    sink = Sink(loaded.file, loaded.problems)
    top = _top(loaded.root, sink)
    defaults = top.fields("defaults")
    if defaults is not None and defaults.given("name"):
        defaults.problem("name", "a name belongs to one job, not to the defaults")
    jobs = _jobs(top, None if defaults is None else defaults.node)
    _unique_names(jobs)
    from_stdin = str(path) in text.STDIN_NAMES
    catalog = Catalog(profile_dirs, None if from_stdin else Path(path).parent)
    inherited = set() if defaults is None else _places(defaults.node)
    entries = []
    for raw in jobs:
        job = _resolved(raw, catalog)
        problems = tuple(ordered(_named_by_place(raw.fields.sink.refusals, inherited)))
        entries.append(
            JobEntry(
                raw.name or "", None if problems else job, problems, raw.fields.node.line, raw.fields.node, catalog
            )
        )
        sink.problems += _named_by_place(raw.fields.sink.problems, inherited)
    sink.problems[:] = _named_by_place(sink.problems, inherited)
    sink.raise_problems()
    return entries


def read_one_job(
    path: Path | str,
    name: str | None,
    over: MappingABC[str, Any] | None = None,
    profile_dirs: SequenceABC[Path] = (),
) -> JobEntry:
    """One job of a file, with the keys of `over` in the place of its own; None takes a key away.

    `name` is needed where the file has several jobs. Raises InputError as `read_job_file` does, for a name that no job
    has, and with every problem of that job; what is wrong with a key of `over` has no place in the file.
    """
    loaded = document.load(path, allow_stdin=True)
    sink = Sink(loaded.file, loaded.problems)
    top = _top(loaded.root, sink)
    defaults = top.fields("defaults")
    jobs = _jobs(top, None if defaults is None else defaults.node)
    sink.raise_problems()
    raw = _called(jobs, name, str(path))
    found = raw.fields
    own = Sink(loaded.file)
    from_stdin = str(path) in text.STDIN_NAMES
    catalog = Catalog(profile_dirs, None if from_stdin else Path(path).parent)
    node = _laid_over(found.node, over or {}, own)
    job = _resolved(read_job(Fields(node, own, found.path), in_file=True), catalog)
    inherited = set() if defaults is None else _places(defaults.node)
    for problems in (own.problems, own.refusals):
        problems[:] = [
            one._replace(file=None, key=(one.key or "").removeprefix(found.path) or None) if one.line is None else one
            for one in _named_by_place(problems, inherited)
        ]
    own.raise_all()
    return JobEntry(raw.name or "", job, (), found.node.line, node, catalog)


def _laid_over(node: Mapping, over: MappingABC[str, Any], sink: Sink) -> Mapping:
    """A job with other keys: what is in a mapping such as `parallel` one by one, anything else as a whole."""
    result = Mapping(node.line, node.column)
    result.entries = dict(node.entries)
    given = {key: value for key, value in over.items() if value is not None and not isinstance(value, MappingABC)}
    for key, entry in root_of(given, sink).entries.items():
        result.entries[key] = entry
    for key, value in over.items():
        if value is None:
            result.entries.pop(key, None)
        elif isinstance(value, MappingABC):
            below = result.entries.get(key)
            inside = below.value if below is not None and isinstance(below.value, Mapping) else Mapping()
            laid = _laid_over(inside, value, sink)
            result.entries[key] = document.Entry(document.Scalar(key) if below is None else below.key, laid)
    return result


def _called(jobs: SequenceABC[RawJob], name: str | None, path: str) -> RawJob:
    names = [raw.name or "" for raw in jobs]
    if name is None and len(jobs) == 1:
        return jobs[0]
    if name is None:
        hint = f"--job '{path}#{names[0]}'; the jobs are {_listed(names)}"
        raise InputError([Problem(f"{path} has {len(jobs)} jobs: say which", "--job", hint)])
    found = [raw for raw in jobs if raw.name is not None and raw.name.split() == name.split()]
    if len(found) > 1:
        raise InputError([Problem(f"{path} has {len(found)} jobs {name!r}", "--job", "each has a name of its own")])
    if found:
        return found[0]
    of_matrix = [one for one in names if one.startswith(f"{name} (")]
    if of_matrix:
        hint = f"they are {_listed(of_matrix)}"
        raise InputError([Problem(f"{name!r} stands for {len(of_matrix)} jobs: say which", "--job", hint)])
    hint = near_matches(name, names) or f"the jobs are {_listed(names)}"
    raise InputError([Problem(f"{path} has no job {name!r}", "--job", hint)])


def _listed(names: SequenceABC[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def _top(root: Mapping, sink: Sink) -> Fields:
    """The top of a file, with its keys and its version checked.

    Raises InputError for a job that stands there by itself: one message, not one for each of its keys.
    """
    top = Fields(root, sink)
    if not any(key in root.entries for key in _TOP) and "model" in root.entries:
        hint = f"a file of jobs has version: {VERSION}, and jobs: with a list in which each job has a name"
        message = "is a key of a job, and belongs below jobs"
        top.problem("model", message, hint=hint, at=root.entries["model"].key)
        sink.raise_problems()
    top.reject_unknown(_TOP)
    _version(top)
    return top


def _version(top: Fields) -> None:
    version = top.integer("version", minimum=0)
    if version is None and not top.given("version"):
        top.problem("version", "required key is missing", hint=f"version: {VERSION}")
    elif version is not None and version != VERSION:
        top.problem("version", f"{version} is not supported", hint=f"this vramplan reads version {VERSION}")


def _jobs(top: Fields, defaults: Mapping | None) -> list[RawJob]:
    if not top.given("jobs"):
        top.problem("jobs", "required key is missing")
        return []
    result: list[RawJob] = []
    count = len(top.sink.problems)
    found = made = 0
    defaults = None if defaults is None else with_kind(defaults)
    for fields in top.mappings("jobs"):
        fields.node = node = with_kind(fields.node)
        if defaults is not None:
            merged = document.merged(defaults, node)
            assert isinstance(merged, Mapping)
            node = merged
        variants = [node]
        if MATRIX in node.entries:
            whole = Fields(node, top.sink, fields.path)
            variants = on_demand.expanded(whole, fields.node, defaults, on_demand.MOST_JOBS - made)
            made += len(variants)
        for one in variants:
            # a sink of its own: one job's refusals are not another's
            raw = read_job(Fields(one, Sink(top.sink.file), fields.path), in_file=True)
            result.append(raw)
            found += len(raw.fields.sink.problems)
            if found > MAX_PROBLEMS_READ:
                return result
    if not result and len(top.sink.problems) == count:
        top.problem("jobs", "there are no jobs")
    return result


def _places(node: document.Node) -> set[tuple[int | None, int | None]]:
    """Line and column of everything in a tree."""
    places = {(node.line, node.column)}
    if isinstance(node, Mapping):
        for entry in node.entries.values():
            places |= {(entry.key.line, entry.key.column)} | _places(entry.value)
    elif isinstance(node, document.Sequence):
        for item in node.items:
            places |= _places(item)
    return places


def _named_by_place(problems: Iterable[Problem], inherited: set[tuple[int | None, int | None]]) -> Iterator[Problem]:
    """`jobs.3.precision` -> `defaults.precision` where that is what stands at the place."""
    for problem in problems:
        placed = problem.line is not None and (problem.line, problem.column) in inherited
        if placed and problem.key is not None and problem.key.startswith("jobs."):
            key = problem.key.split(".", 2)
            yield problem._replace(key=".".join(["defaults", *key[2:]]))
        else:
            yield problem


def _unique_names(jobs: list[RawJob]) -> None:
    seen: dict[str, int | None] = {}
    for raw in jobs:
        if raw.name is None:
            continue
        name = " ".join(raw.name.split())  # nobody can tell names apart by their spaces
        node = raw.fields.node_of("name")
        if name in seen:
            raw.fields.problem("name", f"{raw.name!r} names another job too, at line {seen[name]}", at=node)
        elif node is not None:
            seen[name] = node.line
