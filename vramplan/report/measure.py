"""What is said about measured jobs: predicted and measured side by side."""

from __future__ import annotations

from typing import Any

from vramplan.report.csv import written
from vramplan.report.json import error_object
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.lists import ENDLESS, problems_text
from vramplan.report.markdown import page
from vramplan.report.markdown import table as markdown_table
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import count, gib_near, share_text, text_of
from vramplan.results import SCHEMA_VERSION
from vramplan.results.frozen import plain
from vramplan.results.measure import ERROR, OOM, SKIPPED, STATUSES, CountedFigures, MeasuredRow, Measurement, Predicted
from vramplan.version import __version__

STYLES = {OOM: "does-not-fit", ERROR: "error", SKIPPED: "muted"}
COLUMNS = (
    *("name", "status", "relative_error", "predicted_verdict"),
    *(f"predicted_{key}" for key in Predicted._fields if key != "verdict"),
    *(f"measured_{key}" for key in CountedFigures._fields),
    "error",
)


def document(answer: Measurement) -> dict[str, Any]:
    """The answer of `vramplan measure`: one result per job, in the order in which they were run."""
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "output": answer.output,
        "results": [_result(row) for row in answer.rows],
        "summary": {"total": len(answer.rows), **{status: answer.count(status) for status in STATUSES}},
    }


def _result(row: MeasuredRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "status": row.status,
        "predicted": None if row.predicted is None else row.predicted._asdict(),
        "measured": None if row.figures is None else row.figures._asdict(),
        "relative_error": row.relative_error,
        "environment": None if row.environment is None else plain(row.environment),
        "error": error_object(row.problems) if row.problems else None,
    }


def text(answer: Measurement, *, width: int | None) -> list[Line]:
    """Every figure of a single job; of several one line each."""
    rows = answer.rows
    one = len(rows) == 1 and rows[0].figures is not None
    lines = _single(rows[0], width) if one else _several(rows, width)
    for row in rows:
        if row.problems:
            spans = [Span(f"{row.name}: ", "error"), Span(problems_text(row.problems))]
            lines += wrap(spans, width or ENDLESS, rest=4)
    return [*lines, (), *wrap([Span(_summary(answer))], width or ENDLESS)]


def csv(answer: Measurement) -> str:
    """One row per job."""
    return written(COLUMNS, map(_flat, answer.rows))


def markdown(answer: Measurement) -> str:
    """One row per job, and the count."""
    head = ("status", "job", "predicted GiB", "measured GiB", "error", "reserved GiB", "GPU GiB", "step s")
    cells = [[literal(cell) for cell in _cells(row)] for row in answer.rows]
    failed = [f"- {literal(row.name)}: {literal(problems_text(row.problems))}" for row in answer.rows if row.problems]
    sections = [markdown_table(head, cells) if cells else [], failed, [literal(_summary(answer))]]
    return page([section for section in sections if section])


def _single(row: MeasuredRow, width: int | None) -> list[Line]:
    figures, predicted = row.figures, row.predicted
    assert figures is not None
    assert predicted is not None
    lines = wrap([Span(row.status.upper(), STYLES.get(row.status, "strong")), Span(f"  {row.name}")], width or ENDLESS)
    if figures.outcome == OOM:
        where = f"out of memory in {figures.oom_phase or 'the step'}, predicted {predicted.verdict}"
        lines += wrap([Span(where)], width or ENDLESS, first=2)
    lines.append(())
    cells: list[list[Cell]] = []
    for name in ("allocated", "requested", "reserved", "device"):
        own = getattr(predicted, f"{name}_bytes", None)
        measured = getattr(figures, f"{name}_bytes")
        error = None
        if own is not None and measured and figures.outcome != OOM:
            error = (own - measured) / measured
        cells.append([name, _gib(own), _gib(measured), _share(error)])
    for name in ("forward", "backward", "step", "evaluation", "generation"):
        level = getattr(figures, f"{name}_bytes")
        if level is not None:
            cells.append([f"in {name}", "-", _gib(level), "-"])
    columns = [
        Column("metric"),
        Column("predicted GiB", right=True),
        Column("measured GiB", right=True),
        Column("error", right=True),
    ]
    lines += table(columns, cells, width)
    if figures.step_seconds is not None:
        of = "" if figures.micro_steps in (None, 1) else f" of {figures.micro_steps} micro-steps"
        lines += [(), (Span(f"  a step{of} takes {figures.step_seconds:.3f} s"),)]
    if row.environment is not None:
        said = ", ".join(f"{key} {value}" for key, value in row.environment.items() if value is not None)
        lines += [(), *wrap([Span(said, "muted")], width or ENDLESS, first=2)]
    return lines


def _several(rows: tuple[MeasuredRow, ...], width: int | None) -> list[Line]:
    columns = [
        Column("status"),
        Column("job", most=48),
        Column("predicted GiB", right=True),
        Column("measured GiB", right=True),
        Column("error", right=True),
        Column("reserved GiB", right=True, drop=2),
        Column("GPU GiB", right=True, drop=3),
        Column("step s", right=True, drop=1),
    ]
    cells: list[list[Cell]] = [[Span(row.status, STYLES.get(row.status, "")), *_cells(row)[1:]] for row in rows]
    return table(columns, cells, width, indent=0)


def _cells(row: MeasuredRow) -> list[str]:
    figures = row.figures or CountedFigures("")
    measured = None if figures.outcome == OOM else figures.allocated_bytes
    return [
        row.status,
        row.name,
        _gib(None if row.predicted is None else row.predicted.allocated_bytes),
        _gib(measured),
        _share(row.relative_error),
        _gib(figures.reserved_bytes),
        _gib(figures.device_bytes),
        "-" if figures.step_seconds is None else f"{figures.step_seconds:.3f}",
    ]


def _flat(row: MeasuredRow) -> dict[str, Any]:
    flat: dict[str, Any] = {"name": row.name, "status": row.status, "relative_error": row.relative_error}
    if row.predicted is not None:
        flat |= {f"predicted_{key}": value for key, value in row.predicted._asdict().items()}
    if row.figures is not None:
        flat |= {f"measured_{key}": value for key, value in row.figures._asdict().items()}
    flat["error"] = "; ".join(map(str, row.problems)) if row.problems else None
    return dict.fromkeys(COLUMNS) | flat


def _summary(answer: Measurement) -> str:
    """`3 jobs: 2 measured, 1 out of memory; the cases are in measured.yaml`."""
    words = {OOM: "out of memory", ERROR: "not run"}
    counts = [f"{answer.count(status)} {words.get(status, status)}" for status in STATUSES if answer.count(status)]
    where = f"; the cases are in {answer.output}" if len(answer.rows) > answer.count(ERROR) else ""
    return f"{count(len(answer.rows), 'job')}: {', '.join(counts)}{where}"


def _gib(size: int | None) -> str:
    return "-" if size is None else text_of(gib_near(size))


def _share(error: float | None) -> str:
    return "-" if error is None else share_text(error, signed=True)
