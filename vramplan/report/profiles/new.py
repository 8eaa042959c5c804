"""A profile that was written: where it is, what to do next."""

from __future__ import annotations

from typing import Any

from vramplan.options.flags import quoted
from vramplan.report.csv import written
from vramplan.report.lines import Line, Span, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import count
from vramplan.results import SCHEMA_VERSION
from vramplan.results.profiles import NewProfile

COLUMNS = ("kind", "name", "file", "copied_from", "shadows", "to_do")


def document(answer: NewProfile) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": answer.kind,
        "name": answer.name,
        "file": answer.file,
        "copied_from": answer.copied_from,
        "shadows": answer.shadows,
        "to_do": list(answer.to_do),
    }


def text(answer: NewProfile, *, width: int | None) -> list[Line]:
    """The file, and the commands that come next."""
    wide = width or ENDLESS
    lines = wrap([Span("written: ", "heading"), Span(answer.file or "standard output")], wide, rest=2)
    for note in _notes(answer):
        lines += wrap([Span(note)], wide, first=2, rest=4)
    for command in _next(answer):
        lines += wrap([Span(command, "flags")], wide, first=2, rest=4)
    return lines


def csv(answer: NewProfile) -> str:
    """One row."""
    return written(COLUMNS, [document(answer)])


def markdown(answer: NewProfile) -> str:
    """The file, and the commands that come next."""
    commands = ["```sh", *_next(answer), "```"]
    return page([[f"written: {literal(answer.file or 'standard output')}"], [*map(literal, _notes(answer))], commands])


def _notes(answer: NewProfile) -> list[str]:
    notes = []
    if answer.copied_from is not None:
        notes.append(f"a copy of {answer.copied_from}: change what differs, and its source with it")
    if answer.shadows is not None:
        notes.append(f"it shadows the shipped {answer.name}")
    if answer.to_do:
        notes.append(f"{count(len(answer.to_do), 'key')} to fill in: {', '.join(answer.to_do)}")
    return notes or ["nothing is left to fill in"]


def _next(answer: NewProfile) -> list[str]:
    """Edit, lint, look."""
    file = quoted(answer.file or f"{answer.name}.yaml")
    look = {"gpu": "gpus show", "model": "models show"}.get(answer.kind)
    commands = [f"$EDITOR {file}", f"vramplan profiles lint {file}"]
    return [*commands, f"vramplan {look} {file}"] if look else commands
