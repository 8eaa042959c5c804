"""A matrix of a job file: one job for each combination of the values of some keys.

    jobs:
      - name: llama
        model: llama-3.1-8b
        matrix:
          gpu: [a100-80gb, h100-80gb]
          parallel: {sharding: [fsdp, zero3]}
          exclude:
            - {gpu: h100-80gb, parallel: {sharding: zero3}}

Each combination is written into a copy of the job, and the copy is laid over `defaults` as a job without a matrix is.
So a matrix gives the answers of the jobs that somebody would write out by hand; only their names say where they come
from. How many there are is looked at before any of them is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import prod

from vramplan.catalog.document import Entry, Mapping, Node, Scalar, Sequence, merged
from vramplan.catalog.fields import Fields, nearest
from vramplan.options import table
from vramplan.tuples import NamedTuple

MATRIX, EXCLUDE = "matrix", "exclude"
MOST_JOBS = 10_000
"""Jobs that the matrices of one file may give; a file that writes its jobs out may have more."""
MOST_COMPARED = 1_000_000
"""Combinations times exclusions: each is compared with each."""
LONGEST_LABEL = 60  # characters of a value in the name of a job


class MatrixAxis(NamedTuple):
    """One key of a matrix, the values that it takes, and what the name of a job says of each."""

    group: str  # "parallel", "adapter" or "qat", or nothing
    name: str
    key: Scalar
    values: list[Node]
    labels: list[str]

    @property
    def path(self) -> str:
        """The key as it is written with a dot."""
        return f"{self.group}.{self.name}" if self.group else self.name


def expanded(fields: Fields, own: Mapping, defaults: Mapping | None, room: int = MOST_JOBS) -> list[Mapping]:
    """The jobs that a job with a matrix stands for, each laid over `defaults`. What is wrong is noted, and none made.

    `fields` is the job laid over the defaults, whose `matrix` counts; `own` is the job as its file has it. `room`: how
    many jobs the matrices of this file may still give.
    """
    base = None if defaults is None else _without(defaults, MATRIX)
    plain = _without(own, MATRIX)
    if not fields.given(MATRIX):
        return [_laid(base, plain)]
    before = len(fields.sink.problems)
    matrix = fields.fields(MATRIX)
    axes = [] if matrix is None else _axes(matrix, own, defaults)
    if matrix is None or len(fields.sink.problems) > before:
        return []
    number = prod(len(axis.values) for axis in axes)
    if number > room:
        rest = "" if room == MOST_JOBS else f", and those before it have left {room:,}"
        matrix.problem(None, f"{number:,} combinations are too many: the most in a file is {MOST_JOBS:,}{rest}")
        return []
    kept = _kept(matrix, axes, number)
    return [_laid(base, _made(plain, axes, places)) for places in kept]


def _laid(base: Mapping | None, job: Mapping) -> Mapping:
    result = job if base is None else merged(base, job)
    assert isinstance(result, Mapping)
    return result


@cache
def _groups() -> frozenset[str]:
    return frozenset(option.group for option in table.TABLE if option.group)


def _axes(matrix: Fields, own: Mapping, defaults: Mapping | None) -> list[MatrixAxis]:
    """The keys of a matrix with their values; a key of `parallel`, `adapter` or `qat` nested, or with a dot."""
    axes: list[MatrixAxis] = []
    for name, entry in matrix.node.entries.items():
        if name == EXCLUDE:
            continue
        if name in _groups() and isinstance(entry.value, Mapping):
            inner = Fields(entry.value, matrix.sink, f"{matrix.path}{name}.")
            axes += (axis for key, one in entry.value.entries.items() for axis in _axis(inner, name, key, one, key))
        else:
            group, _, last = name.rpartition(".")
            axes += _axis(matrix, group, last, entry, name)
    if not axes and all(name == EXCLUDE for name in matrix.node.entries):
        matrix.problem(None, "has no keys", hint="for example gpu: [a100-80gb, h100-80gb]")
    written = _node_at(own, MATRIX)
    paths = {axis.path for axis in axes}
    seen: set[str] = set()
    for axis in axes:
        beside = [own] if _has(written, axis.path) else [own, defaults]  # what the defaults say a job's matrix replaces
        if axis.group and any(_is_no_mapping(_node_at(place, axis.group)) for place in beside):
            message = f"{axis.group} has no keys that a matrix could add to"
            matrix.problem(axis.path, message, hint=f"{axis.group}: {{...}}", at=axis.key)
        elif any(_has(place, axis.path) for place in beside):
            matrix.problem(axis.path, "stands in the job and in its matrix", hint="leave out one of them", at=axis.key)
        if axis.path in seen or (axis.group and axis.group in paths):
            matrix.problem(axis.path, "stands in the matrix twice", at=axis.key)
        seen.add(axis.path)
    return axes


def _axis(fields: Fields, group: str, name: str, entry: Entry, path: str) -> Iterator[MatrixAxis]:
    """The axis of one key; none if something is wrong with it. `path`: the key as it is written at its place."""
    known = [one for one in table.inside(group) if one != "name"]
    if name not in known:
        every = [option.key for option in table.TABLE if option.key != "name"]
        hint = nearest(path, known if path == name else every)
        fields.problem(path, "unknown key", hint=hint, at=entry.key)
    elif not isinstance(entry.value, Sequence):
        fields.problem(path, "expected a list of values", hint=f"{path}: [...]", at=entry.value)
    elif not entry.value.items:
        fields.problem(path, "is an empty list", at=entry.value)
    else:
        values = entry.value.items
        seen: set[str] = set()
        for value in values:
            if _identity(value) in seen:
                fields.problem(path, f"{_label(value)!r} stands in the list twice", at=value)
                return
            seen.add(_identity(value))
        yield MatrixAxis(group, name, entry.key, values, _labels(values))


def _is_no_mapping(node: Node | None) -> bool:
    return node is not None and not isinstance(node, Mapping) and not _is_null(node)


def _has(node: Node | None, path: str) -> bool:
    """Whether a mapping has a key such as `parallel.data`, nested or with a dot."""
    if _node_at(node, path) is not None:
        return True
    for part in path.split("."):
        node = _node_at(node, part)
    return node is not None


def _node_at(node: Node | None, name: str) -> Node | None:
    entry = node.entries.get(name) if isinstance(node, Mapping) else None
    return None if entry is None else entry.value


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_null


def _kept(matrix: Fields, axes: list[MatrixAxis], number: int) -> list[tuple[int, ...]]:
    """The combinations that are not excluded, as the places of their values."""
    before = len(matrix.sink.problems)
    items = _items(matrix)
    if number * len(items) > MOST_COMPARED:
        message = f"{len(items):,} exclusions from {number:,} combinations are too many"
        matrix.problem(EXCLUDE, message, hint="write out the jobs that are left")
        return []
    excluded = [_exclusion(matrix, axes, place, item) for place, item in enumerate(items)]
    if len(matrix.sink.problems) > before:
        return []
    met: set[int] = set()
    kept = []
    for places in product(*(range(len(axis.values)) for axis in axes)):
        matching = {
            number for number, one in enumerate(excluded) if all(places[axis] in wanted for axis, wanted in one.items())
        }
        met |= matching
        if not matching:
            kept.append(places)
    for place, item in enumerate(items):
        if place not in met:
            matrix.problem(f"{EXCLUDE}.{place}", "excludes no combination of the matrix", at=item)
    if not kept:
        matrix.problem(EXCLUDE, "every combination is excluded")
    return kept if len(matrix.sink.problems) == before else []


def _items(matrix: Fields) -> list[Node]:
    node = matrix.node_of(EXCLUDE)
    if isinstance(node, Sequence):
        return node.items
    if node is not None and not _is_null(node):
        matrix.problem(EXCLUDE, "expected a list of combinations")
    return []


def _exclusion(matrix: Fields, axes: list[MatrixAxis], place: int, item: Node) -> dict[int, set[int]]:
    """The places of the values that an exclusion means, by the place of the axis."""
    if not isinstance(item, Mapping) or not item.entries:
        matrix.problem(f"{EXCLUDE}.{place}", "expected keys of the matrix and a value of each", at=item)
        return {}
    number = {axis.path: place for place, axis in enumerate(axes)}
    found: dict[int, set[int]] = {}
    for key, value in _flat(item, number):
        if key not in number:
            hint = nearest(key, list(number)) or f"the matrix has {', '.join(number)}"
            matrix.problem(f"{EXCLUDE}.{place}.{key}", "is no key of the matrix", hint=hint, at=item)
            continue
        axis = axes[number[key]]
        found[number[key]] = {at for at, one in enumerate(axis.values) if _matches(one, value)}
    return found


def _flat(mapping: Mapping, known: dict[str, int]) -> Iterator[tuple[str, Node]]:
    for name, entry in mapping.entries.items():
        if name in _groups() and name not in known and isinstance(entry.value, Mapping):
            yield from ((f"{name}.{key}", one.value) for key, one in entry.value.entries.items())
        else:
            yield name, entry.value


def _matches(value: Node, wanted: Node) -> bool:
    """Whether a value is what an exclusion says: the same, a mapping that has what it says, or one of that name."""
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return all(
            key in value.entries and _matches(value.entries[key].value, entry.value)
            for key, entry in wanted.entries.items()
        )
    if isinstance(value, Mapping) and isinstance(wanted, Scalar):
        name = _node_at(value, "name")
        return isinstance(name, Scalar) and name.text == wanted.text
    return _identity(value) == _identity(wanted)


def _made(plain: Mapping, axes: list[MatrixAxis], places: tuple[int, ...]) -> Mapping:
    """One job: the plain one with a value for each key, and a name that says them."""
    job = _without(plain)
    said = []
    for axis, at in zip(axes, places, strict=True):
        said.append(f"{axis.name}={axis.labels[at]}")
        place = job
        if axis.group:
            below = job.entries.get(axis.group)
            inner = below.value if below is not None and isinstance(below.value, Mapping) else None
            place = Mapping(axis.key.line, axis.key.column) if inner is None else _without(inner)
            job.entries[axis.group] = Entry(axis.key if below is None else below.key, place)
        place.entries[axis.name] = Entry(axis.key, axis.values[at])
    name = job.entries.get("name")
    if name is not None and isinstance(name.value, Scalar) and not name.value.is_null:
        old = name.value
        text = f"{old.text} ({', '.join(said)})"
        job.entries["name"] = Entry(name.key, Scalar(text, "quoted", old.line, old.column))
    return job


def _without(node: Mapping, name: str | None = None) -> Mapping:
    """A copy, without one key."""
    copy = Mapping(node.line, node.column)
    copy.entries = {key: entry for key, entry in node.entries.items() if key != name}
    return copy


def _labels(values: list[Node]) -> list[str]:
    """What names say of the values: short, and each another one."""
    short = [_label(value) for value in values]
    times = Counter(short)
    return [label if times[label] == 1 else f"{label} #{place}" for place, label in enumerate(short, 1)]


def _label(value: Node) -> str:
    name = _node_at(value, "name")
    text = _identity(value if name is None else name)
    if not text.isprintable():  # what is wrong with the value is said where it is read
        text = ascii(text)[1:-1]
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 3] + "..."


def _identity(value: Node) -> str:
    """The whole of a value as text: two values of the same text are the same."""
    if isinstance(value, Scalar):
        return value.text
    if isinstance(value, Sequence):
        return "[" + ", ".join(_identity(item) for item in value.items) + "]"
    return "{" + ", ".join(f"{key}: {_identity(entry.value)}" for key, entry in value.entries.items()) + "}"
