"""`check` as workflow annotations of GitHub: an error for what failed, a warning for a tight pass, else nothing."""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.report.numbers import gib_against, gib_down, percent_up, text_of
from vramplan.results import TIGHT, FitResult
from vramplan.results.figures import Figures
from vramplan.results.listings import CheckRow


def render_check(rows: Iterable[CheckRow]) -> str:
    """One annotation per job that is worth one, on the line of the job; nothing if all passed with room to spare."""
    return "".join(_annotation(row) for row in rows)


def _annotation(row: CheckRow) -> str:
    if row.result is None:
        return _command("error", row, "error", "\n".join(str(problem) for problem in row.problems))
    figures = _figures(row.result)
    if not row.passed:
        return _command("error", row, "failed", "; ".join([*row.reasons, figures]))
    if row.result.verdict == TIGHT:
        return _command("warning", row, "tight", "; ".join([*row.reasons, figures]))
    return ""


def _figures(result: FitResult | Figures) -> str:
    device, usable = result.peak.device_bytes, result.usable_bytes
    shown = f"{text_of(gib_against(device, usable))} of {text_of(gib_down(usable))} GiB usable"
    return f"{shown} ({percent_up(device, usable)})"


def _command(kind: str, row: CheckRow, state: str, message: str) -> str:
    properties = {"file": row.file, "line": row.line if row.file is not None else None, "title": f"{row.name}: {state}"}
    given = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items() if value is not None)
    return f"::{kind} {given}::{_data(message)}\n"


def _data(text: str) -> str:
    """A message as the runner decodes it. Other control characters would reach the log: they become `?`."""
    text = "".join(char if char.isprintable() or char in "\r\n" else "?" for char in text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
