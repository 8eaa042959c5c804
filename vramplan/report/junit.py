"""`check` as JUnit XML, which CI systems show as tests: one case per job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree

from vramplan.results import FitResult
from vramplan.results.figures import Figures
from vramplan.results.listings import CheckRow, CheckSummary

SUITE = "vramplan check"
_SPACES = re.compile(r"[\t\n\r\x85\u2028\u2029]")
# Control characters, halves of surrogate pairs and what Unicode calls no character: most of it XML has no way to write.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render_check(rows: Iterable[CheckRow]) -> str:
    """`failure` is a gate that failed, `error` a job that could not be computed. ASCII, valid in every encoding."""
    rows = tuple(rows)
    summary = CheckSummary.of(rows)
    counts = {"tests": str(summary.total), "failures": str(summary.failed), "errors": str(summary.errors)}
    root = ElementTree.Element("testsuites", {"name": SUITE, **counts})
    for file in dict.fromkeys(row.file for row in rows) or (None,):
        own = [row for row in rows if row.file == file]
        of = CheckSummary.of(own)
        counts = {"tests": str(of.total), "failures": str(of.failed), "errors": str(of.errors)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(file or SUITE), **counts, "skipped": "0"})
        suite.extend(_case(row) for row in own)
    ElementTree.indent(root)
    body = ElementTree.tostring(root, encoding="us-ascii").decode("ascii")
    body = body.removeprefix("<?xml version='1.0' encoding='us-ascii'?>\n")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(row: CheckRow) -> ElementTree.Element:
    place = {"file": row.file, "line": row.line if row.file is not None else None}
    given = {key: _text(str(value)) for key, value in place.items() if value is not None}
    case = ElementTree.Element("testcase", {"classname": SUITE, "name": _text(row.name), **given})
    if row.result is None:
        messages = [_text(str(problem)) for problem in row.problems]
        _add(case, "error", messages, "error")
        return case
    properties = ElementTree.SubElement(case, "properties")
    for key, value in _figures(row.result).items():
        ElementTree.SubElement(properties, "property", {"name": key, "value": str(value)})
    reasons = [_text(reason) for reason in row.reasons]
    if not row.passed:
        _add(case, "failure", reasons, row.result.verdict)
    elif reasons:
        ElementTree.SubElement(case, "system-out").text = "\n".join(reasons)
    return case


def _add(case: ElementTree.Element, tag: str, messages: list[str], kind: str) -> None:
    ElementTree.SubElement(case, tag, {"message": "; ".join(messages), "type": kind}).text = "\n".join(messages)


def _figures(result: FitResult | Figures) -> dict[str, int | str]:
    return {
        "verdict": result.verdict,
        "device_bytes": result.peak.device_bytes,
        "usable_bytes": result.usable_bytes,
    }


def _text(text: str) -> str:
    """`text` on one line, with nothing that XML cannot hold."""
    return _UNWRITABLE.sub("", _SPACES.sub(" ", text))
