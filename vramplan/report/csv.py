"""Rows for a spreadsheet or a script: a header, then one row per alternative, job, profile or field.

The names of the columns are the keys of the JSON documents, and so are the values: integers in bytes, shares as
fractions, `true` and `false`, an empty cell for null. Lists and the problems of a job are one cell, joined by "; ".
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vramplan.report.json import (
    check_document,
    fit_document,
    gpus_document,
    models_document,
    profile_document,
    validate_document,
)
from vramplan.results import FitResult
from vramplan.results.listings import CheckRow, GpuRow, ModelRow, ProfileView, ValidateRow

FORMULAS = ("=", "+", "-", "@")  # what formulas begin with
LADDER = (
    "activation_checkpointing",
    "verdict",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "allocated_bytes",
    "device_bytes",
    "largest_micro_batch_size",
    "recomputed_fraction",
)
FIT = ("name", "recommended", *LADDER, "usable_bytes", "capacity_bytes")
PEAK = ("allocated_bytes", "reserved_bytes", "device_bytes", "low_bytes", "high_bytes")
CHECK = (
    *("name", "passed", "exit_code", "verdict", *PEAK),
    *("usable_bytes", "capacity_bytes", "headroom_bytes", "utilization", "reasons", "error"),
    *("file", "line", "status", "baseline_bytes"),
)
VALIDATE = (
    *("name", "exit_code", "verdict", "metric", "predicted_bytes", "measured_bytes", "relative_error"),
    *("outcome", "measured_outcome", "error"),
    *("rate_figure", "rate_predicted", "rate_measured", "rate_relative_error", "rate_constant_mfu_relative_error"),
)
GPUS = (
    *("name", "title", "capacity_bytes", "capacity_basis", "architecture", "compute_capability"),
    *("bf16", "flash_attention", "aliases", "origin"),
)
MODELS = (
    *("name", "title", "family", "parameters", "layers", "hidden_size", "attention_heads", "key_value_heads"),
    *("vocabulary_size", "max_positions", "aliases", "origin"),
)
SOURCE = ("title", "url", "date")
PROFILE = ("key", "value", "unit", *(f"source_{part}" for part in SOURCE), "reason", "note")


def render_fit(result: FitResult) -> str:
    """One row per alternative of the ladder; `recommended` marks the one to run."""
    document = fit_document(result, exit_code=0)
    chosen = document["recommended"]["activation_checkpointing"]
    return written(
        FIT,
        (
            {**document, **row, "recommended": row["activation_checkpointing"] == chosen}
            for row in document["alternatives"]
        ),
    )


def render_check(rows: Iterable[CheckRow]) -> str:
    """One row per job."""
    return written(CHECK, map(_job, check_document(rows)["results"]))


def render_validate(rows: Iterable[ValidateRow]) -> str:
    """One row per case."""

    def row(result: Mapping[str, Any]) -> dict[str, Any]:
        return _job(result) | {f"rate_{key}": value for key, value in (result.get("rate") or {}).items()}

    return written(VALIDATE, (dict.fromkeys(VALIDATE) | row(one) for one in validate_document(rows)["results"]))


def render_gpus(rows: Iterable[GpuRow]) -> str:
    """One row per GPU."""
    return written(GPUS, gpus_document(rows)["gpus"])


def render_models(rows: Iterable[ModelRow]) -> str:
    """One row per model."""
    return written(MODELS, models_document(rows)["models"])


def render_profile(view: ProfileView) -> str:
    """One row per field."""

    def row(key: str, field: Mapping[str, Any]) -> dict[str, Any]:
        source = field["source"] or {}
        return {**field, "key": key, **{f"source_{part}": source.get(part) for part in SOURCE}}

    return written(PROFILE, (row(key, field) for key, field in profile_document(view)["fields"].items()))


def _job(result: Mapping[str, Any]) -> dict[str, Any]:
    peak, error = result.get("peak", {}), result.get("error")
    return {**result, **{key: peak.get(key) for key in PEAK}, "error": None if error is None else _problems(error)}


def _problems(error: Mapping[str, Any]) -> list[str]:
    lines: list[str] = error["message"].split("\n")
    return lines


class _Lines(list[str]):
    """What the writer writes to. It ends rows with CR LF, so that every Python quotes both, and they leave with LF."""

    def write(self, row: str) -> None:
        """Take one row."""
        self.append(row.removesuffix("\r\n") + "\n")


def written(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A header and a row per mapping; what a mapping does not have is an empty cell."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return "".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return _plain("; ".join(value))
    return json.dumps(value)


def _plain(text: str) -> str:
    """A text that neither moves the cursor of a terminal nor is a formula of a spreadsheet.

    An apostrophe stands before what a spreadsheet would compute. Source: OWASP, "CSV Injection".
    """
    text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
    return f"'{text}" if text.lstrip()[:1] in FORMULAS and text.strip() != "-" else text
