"""The folders in which profiles are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.report.csv import written
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.report.markdown import text as literal
from vramplan.results import SCHEMA_VERSION
from vramplan.results.profiles import Folder

KEYS = ("path", "named_by", "exists", "gpus", "models", "runtimes", "stacks", "shadowing")


def document(answer: Sequence[Folder]) -> dict[str, Any]:
    """The JSON document."""
    return {"schema_version": SCHEMA_VERSION, "folders": [_folder(folder) for folder in answer]}


def text(answer: Sequence[Folder], *, width: int | None) -> list[Line]:
    """One line per folder, in the order of the search; below a folder, what of it hides a profile of a later one."""
    cells: list[list[Cell]] = [
        [
            folder.named_by,
            *(str(number) if folder.exists else "-" for number in _counts(folder)),
            Span(folder.path, "strong" if folder.exists else "muted"),
        ]
        for folder in answer
    ]
    columns = [
        Column("named by"),
        Column("gpus", right=True),
        Column("models", right=True),
        Column("runtimes", right=True),
        Column("stacks", right=True),
        Column("folder", fluid=True),
    ]
    lines = table(columns, cells, width, indent=0)
    for folder in answer:
        if folder.shadowing:
            words = f"{folder.path} shadows {', '.join(folder.shadowing)}"
            lines += wrap([Span("note: ", "note"), Span(words)], width or ENDLESS, rest=6)
    return lines


def csv(answer: Sequence[Folder]) -> str:
    """One row per folder."""
    return written(KEYS, map(_folder, answer))


def markdown(answer: Sequence[Folder]) -> str:
    """One row per folder."""
    cells = [
        [
            literal(folder.path) + ("" if folder.exists else " (not there)"),
            literal(folder.named_by),
            *map(str, _counts(folder)),
            literal(", ".join(folder.shadowing)),
        ]
        for folder in answer
    ]
    return page([grid(("folder", "named by", "gpus:", "models:", "runtimes:", "stacks:", "shadows"), cells)])


def _counts(folder: Folder) -> tuple[int, ...]:
    return folder.gpus, folder.models, folder.runtimes, folder.stacks


def _folder(folder: Folder) -> dict[str, Any]:
    values = (*folder[:-1], list(folder.shadowing))
    return dict(zip(KEYS, values, strict=True))
