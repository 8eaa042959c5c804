"""The job that a configuration file means."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from vramplan.report.csv import written
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.report.markdown import text as literal
from vramplan.results import SCHEMA_VERSION
from vramplan.results.reading import ReadJob, ReadValue, Source

VALUE = 20  # characters of a value in one line; what is longer goes on below, so that `from` has room
KEYS = ("key", "value", "from", "file", "line")


def document(answer: ReadJob) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "program": answer.program,
        "release": answer.release,
        "released": answer.released,
        "source": answer.source,
        "files": list(answer.files),
        "job": answer.job,
        "values": [
            {"key": value.key, "value": value.value, "from": [_source(source) for source in value.sources]}
            for value in answer.values
        ],
        "open": dict(answer.open),
        "without_effect": [_source(source) for source in answer.without_effect],
        "unmodelled": dict(answer.unmodelled),
        "not_understood": [_source(source) for source in answer.not_understood],
        "notes": list(answer.notes),
        "points_to": dict(answer.points_to),
    }


def text(answer: ReadJob, *, width: int | None) -> list[Line]:
    """The values with where each comes from, what is open, and what of the file is not in the job."""
    head = f"{', '.join(answer.files)}: {answer.program}, defaults of {answer.release} ({answer.released})"
    lines: list[Line] = [*wrap([Span(head, "heading")], width or ENDLESS), ()]
    cells: list[list[Cell]] = []
    for value in answer.values:
        first, *more = textwrap.wrap(shown(value.value), VALUE) or [""]
        cells.append([value.key, Span(first, "strong"), Span(came_from(answer, value), "muted")])
        cells += [["", Span(part, "strong"), ""] for part in more]
    cells += [[key, Span("open", "note"), Span(reason, "muted")] for key, reason in answer.open.items()]
    lines += table([Column("key"), Column("value"), Column("from", fluid=True)], cells, width, indent=0)
    lines.append(())
    for note in answer.notes:
        lines += wrap([Span("note: ", "note"), Span(note)], width or ENDLESS, rest=6)
    for key, what in answer.unmodelled.items():
        words = f"{key}: {what}; a job has no key for it"
        lines += wrap([Span("not in the job: ", "note"), Span(words)], width or ENDLESS, rest=2)
    if answer.not_understood:
        words = ", ".join(source.key for source in answer.not_understood)
        lines += wrap([Span("not understood: ", "note"), Span(words)], width or ENDLESS, rest=2)
    if answer.without_effect:
        words = ", ".join(source.key for source in answer.without_effect)
        lines += wrap([Span("of no effect: ", "muted"), Span(words, "muted")], width or ENDLESS, rest=2)
    return lines


def csv(answer: ReadJob) -> str:
    """One row per value."""
    return written(KEYS, ({**row, "value": shown(row["value"])} for row in _rows(answer)))


def markdown(answer: ReadJob) -> str:
    """One row per value."""
    cells = [[literal(str(row[key] if key != "value" else shown(row[key]))) for key in KEYS] for row in _rows(answer)]
    return page([grid(KEYS, cells)])


def shown(value: Any) -> str:
    """A value as one line."""
    if isinstance(value, dict) and "name" in value:
        return str(value["name"])
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool | dict):
        return json.dumps(value)
    return str(value)


def came_from(answer: ReadJob, value: ReadValue) -> str:
    """`line 12: bf16`, or the default that gave a value."""
    given = [source for source in value.sources if not source.is_default]
    several = len(answer.files) > 1
    if given:
        return ", ".join(
            f"{source.file}:{source.line}: {source.key}" if several else f"line {source.line}: {source.key}"
            for source in given
        )
    names = ", ".join(
        source.key + (f": {shown(source.value)}" if source.value is not None else "") for source in value.sources[:1]
    )
    return f"default of {answer.program}" + (f" ({names})" if names else "")


def _rows(answer: ReadJob) -> Iterator[dict[str, Any]]:
    for value in answer.values:
        given = next((source for source in value.sources if not source.is_default), None)
        yield {
            "key": value.key,
            "value": value.value,
            "from": came_from(answer, value),
            "file": given.file or "" if given else "",
            "line": given.line or "" if given else "",
        }


def _source(source: Source) -> dict[str, Any]:
    if source.is_default:
        return {"key": source.key, "default": _plain(source.value)}
    return {"key": source.key, "value": _plain(source.value), "file": source.file, "line": source.line}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
