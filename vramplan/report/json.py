"""Results as JSON documents: the keys of docs/job-format.md, all of them, in a stable order, bytes as integers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vramplan.errors import Problem
from vramplan.report import on_demand
from vramplan.results import SCHEMA_VERSION as SCHEMA_VERSION
from vramplan.results import FitResult
from vramplan.results import fit_document as fit_document
from vramplan.version import __version__

if TYPE_CHECKING:  # ten dataclasses take 8 ms, and `fit` needs none of them
    from vramplan.results.listings import (
        CheckRow,
        CheckSummary,
        ErrorStats,
        FieldRow,
        GpuRow,
        LabelStats,
        ModelRow,
        ProfileView,
        RateStats,
        RateSummary,
        ValidateRow,
        ValidateSummary,
    )

SCHEMAS = (
    *("fit", "check", "validate", "gpus", "models", "gpu-profile", "model-profile", "error"),
    *("runtimes", "runtime-profile", "stack-profile"),
    *("profile-lint", "profile-new", "profile-diff", "profile-path"),
    "checkpoints",
    "compare",
    "plan",
    "explain",
    "explain-time",
    "timeline",
    "walkthrough",
    "measure",
    "calibrate",
    "read",
)


def dumps(document: Mapping[str, Any]) -> str:
    """The text of a document, two spaces deep, ASCII, with a line break at the end. NaN and infinity are refused."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def check_document(rows: Iterable[CheckRow], summary: CheckSummary | None = None) -> dict[str, Any]:
    """The answer of `vramplan check`; the summary is counted from the rows if it is not given."""
    rows = tuple(rows)
    summary = summary or on_demand.CheckSummary.of(rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "results": [
            _job(row)
            | {"passed": row.passed and row.result is not None, "status": row.status, "reasons": list(row.reasons)}
            | {"file": row.file, "line": row.line, "baseline_bytes": row.baseline_bytes}
            for row in rows
        ],
        "summary": {
            "total": summary.total,
            "passed": summary.passed,
            "failed": summary.failed,
            "tight": summary.tight,
            "errors": summary.errors,
            "gone": None if summary.gone is None else list(summary.gone),
        },
    }


def validate_document(rows: Iterable[ValidateRow], summary: ValidateSummary | None = None) -> dict[str, Any]:
    """The answer of `vramplan validate`; the summary is computed from the rows if it is not given."""
    from dataclasses import asdict

    rows = tuple(rows)
    summary = summary or on_demand.ValidateSummary.of(rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "results": [
            _job(row)
            | {
                "metric": row.metric,
                "predicted_bytes": row.predicted_bytes,
                "measured_bytes": row.measured_bytes,
                "relative_error": row.relative_error,
                "outcome": row.outcome,
                "measured_outcome": row.measured_outcome,
                "in_band": row.in_band,
                "rate": None
                if row.rate_figure is None
                else {
                    "figure": row.rate_figure,
                    "predicted": row.predicted_rate,
                    "measured": row.measured_rate,
                    "relative_error": row.rate_error,
                    "constant_mfu": row.constant_rate,
                    "constant_mfu_relative_error": row.constant_rate_error,
                },
            }
            for row in rows
        ],
        "summary": {
            "computed": summary.computed,
            "errors": summary.errors,
            "per_metric": {name: _stats(stats) for name, stats in summary.per_metric.items()},
            "per_runtime": {name: _stats(stats) for name, stats in summary.per_runtime.items()},
            "per_devices": {name: _stats(stats) for name, stats in summary.per_devices.items()},
            "per_source": {name: _stats(stats) for name, stats in summary.per_source.items()},
            "peaks": _stats(summary.peaks or on_demand.ErrorStats.of([])),
            "unspecified": asdict(summary.unspecified or on_demand.UnspecifiedStats.of([])),
            "labels": _labels(summary.labels or on_demand.LabelStats.of([])),
            "bands": asdict(summary.bands or on_demand.BandStats.of([])),
            "outcomes": {"right": summary.outcomes_right, "total": summary.outcomes_total},
            "ladders": _ladders(summary),
            "rates": None if summary.rates is None else _rates(summary.rates),
        },
    }


def _rates(rates: RateSummary) -> dict[str, Any]:
    """Errors of predicted rates, calibrated and extrapolated ones apart, and those of a constant utilisation."""
    groups = ("calibrated", "extrapolated", "together", "constant", "constant_calibrated")
    names = {"together": "all", "constant": "constant_mfu", "constant_calibrated": "constant_mfu_calibrated"}
    found: dict[str, Any] = {}
    for group in groups:
        stats: RateStats = getattr(rates, group)
        found[names.get(group, group)] = {
            **_stats(stats.errors),
            "order": stats.order,
            "order_right": stats.order_right,
            "order_total": stats.order_total,
        }
    return {**found, "without_a_prediction": rates.without}


def _labels(labels: LabelStats) -> dict[str, Any]:
    """Runs that fitted or died, and what was predicted for them."""
    return {
        "verdicts": {measured: dict(counts) for measured, counts in labels.verdicts.items()},
        "recall": dict(labels.recall),
        "precision": dict(labels.precision),
        "died_called_fits": labels.died_called_fits,
    }


def _ladders(summary: ValidateSummary) -> dict[str, Any]:
    """What switches change: the steps that are large enough to be judged together, and each of all."""
    judged = summary.judged_steps
    return {
        **_stats(on_demand.ErrorStats.of([step.relative_error for step in judged])),
        "right_in_sign": sum(step.has_sign for step in judged),
        "steps": [
            {
                "ladder": step.ladder,
                "from": step.first,
                "to": step.second,
                "switch": step.switch,
                "measured_bytes": step.measured_bytes,
                "predicted_bytes": step.predicted_bytes,
                "relative_error": step.relative_error,
                "judged": step.is_judged,
            }
            for step in summary.steps
        ],
    }


def gpus_document(rows: Iterable[GpuRow]) -> dict[str, Any]:
    """The answer of `vramplan gpus`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "gpus": [
            {
                "name": row.name,
                "title": row.title,
                "capacity_bytes": row.capacity_bytes,
                "capacity_basis": row.capacity_basis,
                "architecture": row.architecture,
                "compute_capability": row.compute_capability,
                "bf16": row.bf16,
                "flash_attention": row.flash_attention,
                "aliases": list(row.aliases),
                "origin": row.origin,
            }
            for row in rows
        ],
    }


def models_document(rows: Iterable[ModelRow]) -> dict[str, Any]:
    """The answer of `vramplan models`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "models": [
            {
                "name": row.name,
                "title": row.title,
                "family": row.family,
                "parameters": row.parameters,
                "layers": row.layers,
                "hidden_size": row.hidden_size,
                "attention_heads": row.attention_heads,
                "key_value_heads": row.key_value_heads,
                "vocabulary_size": row.vocabulary_size,
                "max_positions": row.max_positions,
                "aliases": list(row.aliases),
                "origin": row.origin,
            }
            for row in rows
        ],
    }


def profile_document(view: ProfileView) -> dict[str, Any]:
    """The answer of `vramplan gpus NAME` and `vramplan models NAME`: `fields.KEY.value` and where it comes from."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": view.kind,
        "name": view.name,
        "title": view.title,
        "aliases": list(view.aliases),
        "file": view.file,
        "notes": list(view.notes),
        "fields": {row.key: _field(row) for row in view.fields},
    }


def error_object(problems: Iterable[Problem]) -> dict[str, Any]:
    """The value of `error`: all problems, and the text that stderr gets."""
    problems = tuple(problems)
    return {
        "message": "\n".join(str(problem) for problem in problems),
        "problems": [
            {
                "file": problem.file,
                "line": problem.line,
                "column": problem.column,
                "key": problem.key,
                "message": problem.message,
                "hint": problem.hint,
            }
            for problem in problems
        ],
    }


def error_document(problems: Iterable[Problem]) -> dict[str, Any]:
    """What stdout gets in JSON mode when a command cannot answer."""
    return {"schema_version": SCHEMA_VERSION, "error": error_object(problems)}


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one of `SCHEMAS`, self-contained: what it refers to is under `$defs`."""
    from importlib.resources import files  # only who asks for a schema pays for it

    folder = files("vramplan.report") / "schemas"
    loaded: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    for needed in loaded.pop("x-needs", []):
        loaded.setdefault("$defs", {})[needed] = schema(needed)
    return loaded


def _job(row: CheckRow | ValidateRow) -> dict[str, Any]:
    if row.result is not None:
        assert isinstance(row.result, FitResult)
        return fit_document(row.result, exit_code=row.exit_code)
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": row.name,
        "error": error_object(row.problems),
        "exit_code": row.exit_code or 2,
    }


def _stats(stats: ErrorStats) -> dict[str, Any]:
    return {
        "count": stats.count,
        "median": stats.median,
        "p90": stats.p90,
        "worst": stats.worst,
        "bias": stats.bias,
    }


def _field(row: FieldRow) -> dict[str, Any]:
    source = row.source
    found = {
        "value": row.value,
        "unit": row.unit,
        "source": None if source is None else {"title": source.title, "url": source.url, "date": source.date},
        "reason": row.reason,
        "note": row.note,
    }
    return found | {"fitted_from": list(row.fitted_from)} if row.fitted_from else found
