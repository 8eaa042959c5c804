"""What is said about a derivation: the JSON document, rows, Markdown; the page for a person is in `explain_text`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.report import markdown as page
from vramplan.report.csv import written
from vramplan.report.explain_text import life_facts, parts_of_peak, section_title, shape_text, text
from vramplan.report.memory import ShownFigures
from vramplan.results import SCHEMA_VERSION
from vramplan.results.explain import Blocks, Explanation, Life, Made, Operator, Rule, Section
from vramplan.results.frozen import plain
from vramplan.version import __version__

__all__ = ["csv", "document", "markdown", "text"]


def document(answer: Explanation) -> dict[str, Any]:
    """The answer of `vramplan explain`; every size is integer bytes."""
    fit, totals, peak = answer.fit, answer.totals, answer.peak
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": fit.name,
        "verdict": fit.verdict,
        "job": plain(fit.job),
        "block": answer.block,
        "states": [
            {
                "component": state.component,
                "formula": state.formula,
                "bytes": state.bytes,
                "tensors": [{**tensor._asdict(), "shape": list(tensor.shape)} for tensor in state.tensors],
            }
            for state in answer.states
        ],
        "operators": [_section(section) for section in answer.sections],
        "peak": {
            "phase": peak.phase,
            "operator": peak.operator,
            "tensor": peak.tensor,
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": fit.peak.reserved_bytes,
            "device_bytes": fit.peak.device_bytes,
            "alive": [one._asdict() for one in peak.alive],
        },
        "totals": {
            "states_bytes": totals.states_bytes,
            "saved": {
                "embedding_bytes": totals.saved_embedding_bytes,
                "blocks_bytes": totals.saved_blocks_bytes,
                "head_bytes": totals.saved_head_bytes,
                "saved_bytes": totals.saved_bytes,
            },
            "components": [{"name": name, "bytes": size} for name, size in totals.components],
            "overheads": [{"name": part.name, "bytes": part.bytes, "basis": part.basis} for part in fit.overheads],
            "allocated_bytes": totals.allocated_bytes,
        },
        "rules": [_rule(rule) for rule in answer.rules],
        "tensor": None if answer.tensor is None else _life(answer.tensor),
        "warnings": list(fit.warnings),
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "part": section.part,
        "direction": section.direction,
        "blocks": _blocks(section.blocks),
        "checkpointed": section.checkpointed,
        "made_bytes": section.made_bytes,
        "kept_bytes": section.kept_bytes,
        "steps": [_operator(operator) for operator in section.operators],
    }


def _operator(operator: Operator) -> dict[str, Any]:
    return {
        "name": operator.name,
        "operator": operator.operator,
        "module": operator.module,
        "rule": operator.rule,
        "inside": list(operator.inside),
        "makes": [{**made._asdict(), "shape": _shape(made.shape)} for made in operator.makes],
        "saves": [{**saved._asdict(), "shape": list(saved.shape)} for saved in operator.saves],
        "frees_bytes": operator.frees_bytes,
    }


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "name": rule.name,
        "where": rule.where,
        "summary": rule.summary,
        "details": list(rule.details),
        "saves": [{"tensor": name, "why": why} for name, why in rule.saves],
        "backward": rule.backward,
        "source": rule.source,
    }


def _life(life: Life) -> dict[str, Any]:
    return {
        "name": life.name,
        "shape": _shape(life.shape),
        "dtype": life.dtype,
        "bytes": life.bytes,
        "copies": life.copies,
        "blocks": _blocks(life.blocks),
        "component": life.component,
        "components": list(life.components),
        "state": life.state,
        "born": life.born,
        "born_phase": life.born_phase,
        "rule": life.rule,
        "keepers": [keeper._asdict() for keeper in life.keepers],
        "views": list(life.views),
        "at_peak": life.at_peak,
        "copies_at_peak": life.copies_at_peak,
        "died": life.died,
        "died_phase": life.died_phase,
        "points": [point._asdict() for point in life.points],
    }


def _shape(shape: tuple[int, ...] | None) -> list[int] | None:
    return None if shape is None else list(shape)


def _blocks(blocks: Blocks | None) -> list[int] | None:
    return None if blocks is None else list(blocks.numbers())


ROWS = (
    *("table", "part", "direction", "operator", "tensor", "shape", "dtype", "copies", "bytes", "total_bytes"),
    *("component", "role", "kept", "at_peak", "rule", "why"),
)


def csv(answer: Explanation) -> str:
    """A row per state, per tensor made or saved, and per tensor alive at the peak; `table` says which."""
    if answer.tensor is not None:
        name = answer.tensor.name
        return written(
            ("tensor", "moment", "copies", "bytes"), ({"tensor": name, **p._asdict()} for p in _points(answer))
        )
    return written(ROWS, _rows(answer))


def _points(answer: Explanation) -> Any:
    assert answer.tensor is not None
    return answer.tensor.points


def _rows(answer: Explanation) -> Iterator[Mapping[str, Any]]:
    for state in answer.states:
        for tensor in state.tensors:
            shape = shape_text(tensor.shape)
            yield {
                **tensor._asdict(),
                "table": "state",
                "tensor": tensor.name,
                "shape": shape,
                "component": state.component,
            }
    for section in answer.sections:
        for operator in section.operators:
            same = {"part": section.part, "direction": section.direction, "operator": operator.name}
            for made in operator.makes:
                yield {**same, **_made(made), "table": "made"}
            for saved in operator.saves:
                shape = shape_text(saved.shape)
                yield {**same, **saved._asdict(), "table": "saved", "shape": shape, "rule": operator.rule}
    for one in answer.peak.alive:
        yield {**one._asdict(), "table": "peak", "tensor": one.name}


def _made(made: Made) -> dict[str, Any]:
    shape = "" if made.shape is None else shape_text(made.shape)
    total = made.bytes * made.copies
    return {**made._asdict(), "operator": None, "tensor": made.name, "shape": shape, "total_bytes": total}


def markdown(answer: Explanation) -> str:
    """The same derivation in tables."""
    if answer.tensor is not None:
        return page.page(_tensor_page(answer.tensor))
    said = [page.headline(answer.fit, ShownFigures(answer.fit))]
    rows = [[state.component, page.text(state.formula), f"{state.bytes:,}"] for state in answer.states]
    said.append(["### States", "", *page.table(("component", "formula", "bytes:"), rows)])
    for section in answer.sections:
        cells = []
        for operator in section.operators:
            for made in operator.makes:
                shape = "" if made.shape is None else page.text(shape_text(made.shape))
                marks = ", ".join(word for word, true in (("kept", made.kept), ("at the peak", made.at_peak)) if true)
                times = f" x {made.copies}" if made.copies > 1 else ""
                cells.append(
                    [f"`{made.name}`", shape, made.dtype or "", f"{made.bytes:,}{times}", marks, made.rule or ""]
                )
            for saved in operator.saves:
                words = f"keeps `{saved.tensor}`: {page.text(saved.why)}"
                cells.append([words, page.text(shape_text(saved.shape)), saved.dtype, "", "", operator.rule or ""])
        columns = ("tensor", "shape", "dtype", "bytes:", "", "rule")
        said.append([f"### {page.text(section_title(section, answer))}", "", *page.table(columns, cells)])
    rows = [[f"`{name}`", component, copies, total] for name, component, copies, total in parts_of_peak(answer)]
    title = f"### Peak: {page.text(answer.peak.phase)}, {page.text(answer.peak.operator)}"
    said.append([title, "", *page.table(("tensor", "component", "copies:", "bytes:"), rows)])
    rows = [[f"`{rule.name}`", page.text(rule.summary), page.text(rule.source)] for rule in answer.rules]
    said.append(["### Rules", "", *page.table(("rule", "what it says", "source"), rows)])
    return page.page(said)


def _tensor_page(life: Life) -> list[list[str]]:
    facts = [f"- {key}: {page.text(value)}" for key, value in life_facts(life)]
    points = [[page.text(point.moment), f"{point.copies:,}", f"{point.bytes:,}"] for point in life.points]
    return [[f"## `{life.name}`"], facts, page.table(("after", "copies:", "bytes:"), points)]
