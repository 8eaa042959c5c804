"""The answer of `vramplan runtimes`: what each runtime decides where a job says nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vramplan.report.csv import written
from vramplan.report.json import SCHEMA_VERSION
from vramplan.report.lines import Cell, Column, Line, Span, table
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.report.markdown import text as escaped

if TYPE_CHECKING:
    from vramplan.results.listings import RuntimeRow

KEYS = (
    *("name", "title", "version", "model_code", "precision", "optimizer", "optimizer_implementation", "loss"),
    *("sharding", "aliases", "origin"),
)
HEADS = ("name", "version", "code", "precision", "optimizer", "loss", "several devices")


def document(rows: Iterable[RuntimeRow]) -> dict[str, Any]:
    """JSON."""
    return {"schema_version": SCHEMA_VERSION, "runtimes": [_values(row) for row in rows]}


def _values(row: RuntimeRow) -> dict[str, Any]:
    return {key: list(row.aliases) if key == "aliases" else getattr(row, key) for key in KEYS}


def _cells(row: RuntimeRow) -> Sequence[str]:
    optimizer = f"{row.optimizer}, {row.optimizer_implementation}"
    return (
        row.name,
        row.version or "-",
        row.model_code,
        row.precision,
        optimizer,
        row.loss,
        row.sharding or "none",
    )


def text(rows: Iterable[RuntimeRow], *, width: int | None = None) -> list[Line]:
    """A line for each."""
    cells: list[list[Cell]] = []
    for row in rows:
        name, *others = _cells(row)
        cells.append([Span(name, "strong"), *others])
    drops = (None, 3, 2, None, None, None, None)
    columns = [
        Column(head, most=32) if drop is None else Column(head, drop=drop)
        for head, drop in zip(HEADS, drops, strict=True)
    ]
    return table(columns, cells, width, indent=0)


def csv(rows: Iterable[RuntimeRow]) -> str:
    """A row for each."""
    return written(KEYS, (_values(row) for row in rows))


def markdown(rows: Iterable[RuntimeRow]) -> str:
    """The same as a table."""
    return page([grid(HEADS, [[escaped(cell) for cell in _cells(row)] for row in rows])])
