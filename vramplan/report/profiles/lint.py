"""The findings of the linter: one line each, as compilers print them."""

from __future__ import annotations

from typing import Any

from vramplan.report.csv import written
from vramplan.report.lines import Line, Span, wrap
from vramplan.report.lists import ENDLESS
from vramplan.report.markdown import page, table
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import count
from vramplan.results import SCHEMA_VERSION
from vramplan.results.profiles import ERROR, WARNING, Finding, Linted

COLUMNS = ("severity", "file", "line", "column", "key", "message", "hint")


def document(answer: Linted) -> dict[str, Any]:
    """The JSON document."""
    return {
        "schema_version": SCHEMA_VERSION,
        "findings": [_finding(finding) for finding in answer.findings],
        "summary": {
            "files": len(answer.files),
            "errors": answer.count(ERROR),
            "warnings": answer.count(WARNING),
        },
    }


def text(answer: Linted, *, width: int | None) -> list[Line]:
    """`FILE:LINE:COLUMN: severity: key: what (remedy)`, and the count."""
    lines: list[Line] = []
    for finding in answer.findings:
        problem = finding.problem
        place = ":".join(str(part) for part in (problem.file, problem.line, problem.column) if part is not None)
        style = "error" if finding.severity == ERROR else "note"
        said = str(problem._replace(file=None, line=None, column=None))
        spans = [Span(f"{place}: "), Span(finding.severity, style), Span(f": {said}")]
        lines += wrap(spans, width or ENDLESS, rest=4)
    return [*lines, *wrap([Span(summary(answer))], width or ENDLESS)]


def csv(answer: Linted) -> str:
    """One row per finding."""
    return written(COLUMNS, map(_finding, answer.findings))


def markdown(answer: Linted) -> str:
    """The count and one row per finding."""
    cells = [
        [
            f"**{finding.severity}**" if finding.severity == ERROR else finding.severity,
            literal(":".join(str(part) for part in finding.problem[3:5] if part is not None)),
            literal(finding.problem.key or ""),
            literal(finding.problem.message + (f" ({finding.problem.hint})" if finding.problem.hint else "")),
        ]
        for finding in answer.findings
    ]
    rows = [table(("severity", "where", "key", "what"), cells)] if cells else []
    return page([[summary(answer)], *rows])


def summary(answer: Linted) -> str:
    """`134 profiles: 0 errors, 2 warnings`."""
    errors, warnings = count(answer.count(ERROR), ERROR), count(answer.count(WARNING), WARNING)
    return f"{count(len(answer.files), 'profile')}: {errors}, {warnings}"


def _finding(finding: Finding) -> dict[str, Any]:
    problem = finding.problem
    return {
        "severity": finding.severity,
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "key": problem.key,
        "message": problem.message,
        "hint": problem.hint,
    }
