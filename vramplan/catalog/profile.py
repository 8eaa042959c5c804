"""What the profiles of GPUs and of models have in common: a name, sources, and fields that name their source.

Named tuples here and beside it: a dataclass takes five times as long to define, in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vramplan.catalog import document
from vramplan.catalog.fields import Fields, Sink
from vramplan.tuples import NamedTuple

_TOP = ("kind", "name", "title", "aliases", "note", "sources", "fields")
_FIELD = ("value", "unit", "source", "reason", "note", "direction", "derived_from", "fitted_from")

Read = Callable[[Fields, str], Any]
"""Reads one value, notes what is wrong with it, and gives None then."""


class PublishedSource(NamedTuple):
    """Where values were published."""

    title: str
    url: str
    accessed: str


class Sourced(NamedTuple):
    """One field: its value in base units, the text it was published as, and where. None is unknown, with a reason."""

    value: Any
    text: str | None
    unit: str | None = None
    source: str | None = None  # an id in Profile.sources
    reason: str | None = None  # why there is no value
    note: str | None = None
    direction: str | None = None  # of a link: bidirectional_total or per_direction
    derived_from: str | None = None  # the rule, where the value is no published one
    fitted_from: tuple[str, ...] = ()  # the published runs in sight of which it was chosen; * stands for any text


class Profile(NamedTuple):
    """One profile file. Fields are in the order of the file."""

    name: str
    title: str | None
    aliases: tuple[str, ...]
    note: str | None
    sources: dict[str, PublishedSource]
    fields: dict[str, Sourced]
    file: str
    stack: str | None = None  # of a runtime: the profile that has what its own leaves out

    def value(self, field: str) -> Any:
        """The value of a field; None where it is unknown or absent."""
        sourced = self.fields.get(field)
        return None if sourced is None else sourced.value


def read(fields: Fields, kind: str, readers: dict[str, Read]) -> Profile:
    """Read a profile; what is wrong goes to the sink of `fields`, and the result is then of no use."""
    has_stack = kind == "runtime"
    fields.reject_unknown((*_TOP, "stack") if has_stack else _TOP)
    given = fields.text("kind")
    if given is None:
        fields.problem("kind", "required key is missing", hint=f"kind: {kind}")
    elif given != kind:
        fields.problem("kind", f"this is a profile of kind {given!r}, not {kind!r}")
    name = fields.text("name")
    if name is None:
        fields.problem("name", "required key is missing")
    sources = _sources(fields)
    return Profile(
        name=name or "",
        title=fields.text("title"),
        aliases=tuple(fields.texts("aliases") or ()),
        note=fields.prose("note"),
        sources=sources,
        fields=_fields(fields, sources, readers),
        file=fields.sink.file or "",
        stack=fields.text("stack") if has_stack else None,
    )


def read_named(path: Path, kind: str, value: Read) -> Profile:
    """Read a profile whose fields have names of their own, each with such a value. Raises InputError with every problem
    of the file."""
    fields = open_profile(path)
    table = fields.node_of("fields")
    names = table.entries if isinstance(table, document.Mapping) else ()
    found = read(fields, kind, dict.fromkeys(names, value))
    fields.sink.raise_all()
    return found


def open_profile(path: Path) -> Fields:
    """The root of a profile file. Raises InputError."""
    loaded = document.load(path)
    return Fields(loaded.root, Sink(loaded.file, loaded.problems))


def _sources(fields: Fields) -> dict[str, PublishedSource]:
    table = fields.fields("sources")
    if table is None:
        fields.problem("sources", "required key is missing", hint="every value names a source by its id here")
        return {}
    sources = {}
    for name in table.names:
        entry = table.fields(name)
        if entry is None:
            if not table.given(name):
                table.problem(name, "a source has title, url and accessed")
            continue
        entry.reject_unknown(("title", "url", "accessed", "note"))
        parts = [_required(entry, key) for key in ("title", "url", "accessed")]
        sources[name] = PublishedSource(*parts)
    return sources


def _fields(fields: Fields, sources: dict[str, PublishedSource], readers: dict[str, Read]) -> dict[str, Sourced]:
    table = fields.fields("fields")
    if table is None:
        fields.problem("fields", "required key is missing")
        return {}
    table.reject_unknown(readers)
    result = {}
    for name in table.names:
        if name not in readers:
            continue
        node = table.node_of(name)
        if not isinstance(node, document.Mapping):
            shown = node.text[:40] if isinstance(node, document.Scalar) else "..."
            table.problem(name, "a value needs its source", hint=f"{name}: {{value: {shown}, source: ID}}")
            continue
        result[name] = _sourced(Fields(node, table.sink, f"{table.path}{name}."), sources, readers[name])
    return result


def _sourced(field: Fields, sources: dict[str, PublishedSource], read_value: Read) -> Sourced:
    field.reject_unknown(_FIELD)
    known = field.given("value")
    value = read_value(field, "value") if known else None
    source, reason = field.text("source"), field.prose("reason")
    if source is not None and source not in sources:
        field.problem("source", f"{source!r} is not among the sources of this file")
    if known and source is None and not field.given("source"):
        field.problem(None, "a value needs its source", hint="source: the id of an entry of sources")
    if not known and reason is None:
        field.problem(None, "an unknown value needs a reason", hint='{value: null, reason: "not published"}')
    fitted_from = tuple(field.texts("fitted_from") or ())
    if field.present("fitted_from") and not fitted_from:
        field.problem("fitted_from", "names no run", hint="the names of published runs, or leave it out")
    elif len(set(fitted_from)) < len(fitted_from):
        field.problem("fitted_from", "names a run twice", hint="name each run once")
    node = field.node_of("value")
    return Sourced(
        value=value,
        text=node.text if known and isinstance(node, document.Scalar) else None,
        unit=field.text("unit"),
        source=source,
        reason=reason,
        note=field.prose("note"),
        direction=field.text("direction"),
        derived_from=field.prose("derived_from"),
        fitted_from=fitted_from,
    )


def _required(fields: Fields, name: str) -> str:
    text = fields.prose(name)
    if text is None and not fields.given(name):
        fields.problem(name, "required key is missing")
    return text or ""
