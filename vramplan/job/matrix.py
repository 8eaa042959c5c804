"""A matrix of a job file: one job for each combination of the values of some keys.

    jobs:
      - name: llama
        model: llama-3.1-8b
        matrix:
          gpu: [a100-80gb, h100-80gb]
          parallel: {sharding: [fsdp, zero3]}
          exclude:
            - {gpu: h100-80gb, parallel: {sharding: zero3}}

The combinations are jobs like those that are written out: only their names say where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import NamedTuple

from vramplan.catalog.document import Entry, Mapping, Node, Scalar, Sequence
from vramplan.catalog.fields import Fields, nearest
from vramplan.options import table

MATRIX, EXCLUDE = "matrix", "exclude"
MOST_JOBS = 10_000
"""Jobs of one matrix; the number is looked at before any of them is made."""


class Axis(NamedTuple):
    """One key of a matrix, and the values that it takes."""

    group: str  # "parallel" or "adapter", or nothing
    name: str
    key: Scalar
    values: list[Node]

    @property
    def path(self) -> str:
        """The key as it is written with a dot."""
        return f"{self.group}.{self.name}" if self.group else self.name


def expanded(fields: Fields, own: Mapping) -> list[Mapping]:
    """The jobs that a job stands for: itself without a matrix. What is wrong is noted.

    `own` is the job as its file has it, without what it inherits: a key stands there or in the matrix, not in both.
    """
    node = fields.node
    if not fields.given(MATRIX):
        return [_without(node, MATRIX)] if fields.present(MATRIX) else [node]
    matrix = fields.fields(MATRIX)
    axes = [] if matrix is None else _axes(matrix, own)
    if matrix is None or not axes:
        return []
    number = prod(len(axis.values) for axis in axes)
    if number > MOST_JOBS:
        matrix.problem(None, f"{number:,} combinations are too many; the most is {MOST_JOBS:,}")
        return []
    plain = _without(node, MATRIX)
    excluded = _excluded(matrix, axes)
    met: set[int] = set()
    jobs = []
    for values in product(*(axis.values for axis in axes)):
        named = {axis.path: value for axis, value in zip(axes, values, strict=True)}
        matching = {place for place, one in enumerate(excluded) if all(_same(named[key], one[key]) for key in one)}
        met |= matching
        if not matching:
            jobs.append(_made(plain, axes, values))
    for place, item in enumerate(_items(matrix, EXCLUDE)):
        if place < len(excluded) and place not in met:
            matrix.problem(f"{EXCLUDE}.{place}", "no combination of the matrix is excluded by it", at=item)
    if not jobs:
        matrix.problem(EXCLUDE, "every combination is excluded")
    return jobs


def _axes(matrix: Fields, own: Mapping) -> list[Axis]:
    """The keys of a matrix with their values; a key of `parallel` or `adapter` nested, or with a dot."""
    axes: list[Axis] = []
    groups = {option.group for option in table.TABLE if option.group}
    for name, entry in matrix.node.entries.items():
        if name == EXCLUDE:
            continue
        if name in groups and isinstance(entry.value, Mapping):
            inner = Fields(entry.value, matrix.sink, f"{matrix.path}{name}.")
            axes += (axis for key, one in entry.value.entries.items() for axis in _axis(inner, name, key, one))
        else:
            group, _, last = name.rpartition(".")
            axes += _axis(matrix, group, last, entry, written=name)
    if not axes and not matrix.sink.problems:
        matrix.problem(None, "has no keys", hint="for example gpu: [a100-80gb, h100-80gb]")
    seen: set[str] = set()
    for axis in axes:
        inside: Node | None = own
        for part in axis.path.split("."):
            below = inside.entries.get(part) if isinstance(inside, Mapping) else None
            inside = None if below is None else below.value
        if inside is not None:
            matrix.problem(axis.path, "stands in the job and in its matrix", hint="leave out one of them", at=axis.key)
        if axis.path in seen:
            matrix.problem(axis.path, "stands in the matrix twice", at=axis.key)
        seen.add(axis.path)
    return axes


def _axis(fields: Fields, group: str, name: str, entry: Entry, *, written: str | None = None) -> Iterator[Axis]:
    known = {one: option for one, option in table.inside(group).items() if one != "name"}
    path = written or name
    if name not in known:
        every = [option.key for option in table.TABLE if option.key != "name"]
        hint = nearest(path, every if written else list(known))
        fields.problem(path, "unknown key", hint=hint, at=entry.key)
    elif not isinstance(entry.value, Sequence):
        fields.problem(path, "expected a list of values", hint=f"{path}: [...]", at=entry.value)
    elif not entry.value.items:
        fields.problem(path, "is an empty list", at=entry.value)
    else:
        yield Axis(group, name, entry.key, entry.value.items)


def _excluded(matrix: Fields, axes: list[Axis]) -> list[dict[str, Node]]:
    """Of each exclusion the values that a combination has to have."""
    paths = {axis.path for axis in axes}
    found = []
    for place, item in enumerate(_items(matrix, EXCLUDE)):
        if not isinstance(item, Mapping) or not item.entries:
            matrix.problem(f"{EXCLUDE}.{place}", "expected keys of the matrix and a value of each", at=item)
            continue
        flat = dict(_flat(item))
        for key in flat.keys() - paths:
            hint = f"the matrix has {', '.join(sorted(paths))}"
            matrix.problem(f"{EXCLUDE}.{place}.{key}", "is no key of the matrix", hint=hint, at=item)
        found.append({key: value for key, value in flat.items() if key in paths})
    return found


def _flat(mapping: Mapping) -> Iterator[tuple[str, Node]]:
    groups = {option.group for option in table.TABLE if option.group}
    for name, entry in mapping.entries.items():
        if name in groups and isinstance(entry.value, Mapping):
            yield from ((f"{name}.{key}", one.value) for key, one in entry.value.entries.items())
        else:
            yield name, entry.value


def _items(fields: Fields, name: str) -> list[Node]:
    node = fields.node_of(name)
    if isinstance(node, Sequence):
        return node.items
    if node is not None:
        fields.problem(name, "expected a list of combinations")
    return []


def _made(plain: Mapping, axes: list[Axis], values: tuple[Node, ...]) -> Mapping:
    """One job: the plain one with a value for each key, and a name that says them."""
    job = _without(plain)
    said = []
    for axis, value in zip(axes, values, strict=True):
        said.append(f"{axis.name}={_shown(value)}")
        place = job
        if axis.group:
            below = job.entries.get(axis.group)
            inner = below.value if below is not None and isinstance(below.value, Mapping) else None
            place = Mapping(axis.key.line, axis.key.column) if inner is None else _without(inner)
            key = axis.key if below is None else below.key
            job.entries[axis.group] = Entry(key, place)
        place.entries[axis.name] = Entry(axis.key, value)
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


def _shown(value: Node) -> str:
    if isinstance(value, Scalar):
        return value.text
    if isinstance(value, Sequence):
        return "[" + ", ".join(_shown(item) for item in value.items) + "]"
    name = value.entries.get("name")
    if name is not None:
        return _shown(name.value)
    return "{" + ", ".join(f"{key}: {_shown(entry.value)}" for key, entry in value.entries.items()) + "}"


def _same(one: Node, other: Node) -> bool:
    return _shown(one) == _shown(other)
