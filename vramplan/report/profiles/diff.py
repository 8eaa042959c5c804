"""Two profiles side by side: what differs, with the sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.report.csv import written
from vramplan.report.headline import value_text
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import count
from vramplan.results import SCHEMA_VERSION
from vramplan.results.profiles import DiffRow, DiffSide, DiffValue, ProfileDiff

_VALUE = ("value", "published", "unit", "source_title", "source_url", "reason")
COLUMNS = ("key", "same", *(f"{side}_{part}" for side in "ab" for part in _VALUE))


def document(answer: ProfileDiff) -> dict[str, Any]:
    """The JSON document: all fields, those that are the same included."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": answer.kind,
        "a": _side(answer.a),
        "b": _side(answer.b),
        "fields": [{"key": row.key, "same": row.same, "a": _value(row.a), "b": _value(row.b)} for row in answer.rows],
        "summary": {"same": len(answer.rows) - len(_different(answer)), "different": len(_different(answer))},
    }


def text(answer: ProfileDiff, *, width: int | None) -> list[Line]:
    """The fields that differ, each with where the values are from."""
    wide = width or ENDLESS
    lines: list[Line] = []
    for mark, side in (("a", answer.a), ("b", answer.b)):
        title = f"  {side.title}" if side.title else ""
        lines += wrap([Span(f"{mark}  "), Span(side.name, "heading"), Span(f"{title}, {side.origin}")], wide, rest=5)
    rows = _different(answer)
    if rows:
        cells: list[list[Cell]] = [
            [row.key, Span(shown(row.a), "strong"), Span(shown(row.b), "strong")] for row in rows
        ]
        lines += [(), *table([Column("field"), Column("a", most=28), Column("b", fluid=True)], cells, width)]
        lines += [(), (Span("Sources", "heading"),)]
        for row in rows:
            for mark, value in (("a", row.a), ("b", row.b)):
                for said in _where(value):
                    spans = [Span(f"{row.key}, {mark}: "), Span(said, "muted")]
                    lines += wrap(spans, wide, first=2, rest=4)
    lines.append(())
    return lines + wrap([Span(summary(answer))], wide)


def csv(answer: ProfileDiff) -> str:
    """One row per field, those that are the same included."""

    def flat(row: DiffRow) -> dict[str, Any]:
        cells: dict[str, Any] = {"key": row.key, "same": row.same}
        for side, value in (("a", row.a), ("b", row.b)):
            parts = (value.value, value.text, value.unit, value.source, value.url, value.reason)
            cells.update({f"{side}_{part}": cell for part, cell in zip(_VALUE, parts, strict=True)})
        return cells

    return written(COLUMNS, map(flat, answer.rows))


def markdown(answer: ProfileDiff) -> str:
    """The fields that differ."""
    names = [literal(side.name) for side in (answer.a, answer.b)]
    cells = [
        [literal(row.key), *(literal("; ".join((shown(value), *_where(value)))) for value in (row.a, row.b))]
        for row in _different(answer)
    ]
    tables = [grid(("field", *names), cells)] if cells else []
    return page([[f"## {names[0]} and {names[1]}"], [literal(summary(answer))], *tables])


def summary(answer: ProfileDiff) -> str:
    """`12 fields are the same, 3 differ`."""
    different = len(_different(answer))
    same = len(answer.rows) - different
    return f"{count(same, 'field')} the same, {different} different"


def shown(value: DiffValue) -> str:
    """A value as it was published, with its unit."""
    if not value.present:
        return "(not there)"
    if value.value is None:
        return "unknown"
    published = value.text if value.text is not None else value_text(value.value)
    return f"{published} {value.unit}" if value.unit else published


def _where(value: DiffValue) -> Iterator[str]:
    if value.value is None and value.reason:
        yield value.reason
    if value.source is not None:
        yield f"{value.source}, {value.url}"


def _different(answer: ProfileDiff) -> list[DiffRow]:
    return [row for row in answer.rows if not row.same]


def _side(side: DiffSide) -> dict[str, Any]:
    return {"name": side.name, "title": side.title, "file": side.file, "origin": side.origin}


def _value(value: DiffValue) -> dict[str, Any] | None:
    if not value.present:
        return None
    source = None if value.source is None else {"title": value.source, "url": value.url}
    return {
        "value": value.value,
        "published": value.text,
        "unit": value.unit,
        "source": source,
        "reason": value.reason,
    }
