"""`vramplan checkpoints`: the strategies side by side, a picture of their segments, and the curve over K."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from vramplan.report.headline import name_of, run_words, sample_words, value_text
from vramplan.report.json import SCHEMA_VERSION
from vramplan.report.lines import Cell, Column, Line, Span, stacked, table, wrap
from vramplan.report.markdown import page
from vramplan.report.markdown import table as grid
from vramplan.report.markdown import text as markup
from vramplan.report.numbers import count, gib_against, gib_down, gib_up, percent_up, text_of
from vramplan.report.text import paste
from vramplan.results import DOES_NOT_FIT
from vramplan.results.placement import PlacementResult, Strategy
from vramplan.version import __version__

WIDEST, NARROWEST = 120, 40
CURVE_ROWS = 16  # a longer curve is shown by the points where the number of segments changes


def document(result: PlacementResult) -> dict[str, Any]:
    """The JSON answer."""
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "name": result.name,
        "verdict": result.verdict,
        "job": dict(result.job),
        "budget_bytes": result.budget_bytes,
        "budget_basis": result.budget_basis,
        "blocks": result.blocks,
        "stored_block_bytes": result.stored_block_bytes,
        "checkpoint_bytes": result.checkpoint_bytes,
        "smallest_peak_bytes": result.smallest_peak_bytes,
        "strategies": [
            {
                "name": row.name,
                "note": row.note,
                "checkpoints": [{"first": first, "last": last} for first, last in row.checkpoints],
                "allocated_bytes": row.allocated_bytes,
                "fits": row.fits,
                "recomputed_flops": row.recomputed_flops,
                "recomputed_fraction": row.recomputed_fraction,
            }
            for row in result.strategies
        ],
        "curve": [point._asdict() for point in result.curve],
        "textbook_segments": result.textbook_segments,
        "best_blocks_per_segment": result.best_blocks_per_segment,
        "flags": result.flags,
        "assumptions": [{"key": item.key, "value": item.value, "why": item.why} for item in result.assumptions],
        "warnings": list(result.warnings),
    }


def text(result: PlacementResult, *, width: int | None) -> list[Line]:
    """The answer for a person."""
    width = max(NARROWEST, min(width or 80, WIDEST))
    sections = [
        _headline(result, width),
        _strategies(result, width),
        _pictures(result, width),
        _curve(result, width),
        _rest(result, width),
    ]
    return stacked(sections)


def _headline(result: PlacementResult, width: int) -> list[Line]:
    job = result.job
    fits = result.verdict != DOES_NOT_FIT
    words = "WITHIN BUDGET" if fits else "NO PLACEMENT FITS"
    what = f"  {name_of(job['model'])}, {', '.join([job['precision'], *sample_words(job)])}, {run_words(job)}"
    lines = wrap([Span(words, result.verdict), Span(what, "strong")], width, rest=2)
    budget = f"budget {text_of(gib_down(result.budget_bytes))} GiB allocated ({result.budget_basis})"
    least = f"; the smallest possible peak is {_gib(result.smallest_peak_bytes, result)} GiB"
    lines += wrap([Span(budget), Span(least)], width, first=2, rest=2)
    stored, checkpoint = _mib(result.stored_block_bytes), _mib(result.checkpoint_bytes)
    if len(result.stacks) > 1:
        each = " + ".join(str(layers) for layers in result.stacks)
        kept = f"{count(result.blocks, 'block')} in stacks of {each}: of the last stack a stored one"
    else:
        kept = f"{count(result.blocks, 'block')}: a stored one"
    kept += f" keeps {stored} MiB for backward, a checkpoint {checkpoint} MiB"
    return lines + wrap([Span(kept)], width, first=2, rest=2)


def _strategies(result: PlacementResult, width: int) -> list[Line]:
    rows: list[list[Cell]] = []
    for row in result.strategies:
        best = row.name == "optimal"
        style = "strong" if best else "" if row.fits else "muted"
        rows.append(
            [
                Span("!" if not row.fits else ">" if best else "", "over" if not row.fits else style),
                Span(row.name, style),
                Span(str(len(row.checkpoints)), style),
                Span(_gib(row.allocated_bytes, result), style),
                Span(percent_up(row.allocated_bytes, result.budget_bytes), style),
                Span(_share(row), style),
                Span(row.note, "muted"),
            ]
        )
    columns = [
        Column(""),
        Column("checkpoints", most=20),
        Column("segments", right=True, drop=2),
        Column("GiB", right=True),
        Column("of budget", right=True, drop=1),
        Column("recompute", right=True),
        Column("", fluid=True),
    ]
    title = [
        Span("Placements", "heading"),
        Span("  peak of allocated memory; operations on top of a step without checkpoints", "muted"),
    ]
    return wrap(title, width, rest=2) + table(columns, rows, width)


def _pictures(result: PlacementResult, width: int) -> list[Line]:
    title = [
        Span("Segments", "heading"),
        Span("  a column is a block: [==] one checkpoint, | a checkpoint of one block, ", "muted"),
        Span("█", "muted", "#"),
        Span(" stored", "muted"),
    ]
    lines = wrap(title, width, rest=2)
    label = min(14, max(len(row.name) for row in result.strategies))
    room = width - label - 4
    for row in result.strategies:
        drawn = picture(row, result.stacks)
        for at in range(0, len(drawn), room):
            name = row.name[:label] if at == 0 else ""
            spans = [Span(f"  {name.ljust(label)}  ", "strong" if row.name == "optimal" else "")]
            lines.append((*spans, *_coloured(drawn[at : at + room])))
    return lines


def picture(row: Strategy, stacks: Sequence[int]) -> str:
    """One character per block: `[==]` a segment, `|` a segment of one, `#` a stored block; a space between stacks."""
    drawn = ["#"] * sum(stacks)
    for first, last in row.checkpoints:
        drawn[first : last + 1] = "|" if first == last else "[" + "=" * (last - first - 1) + "]"
    cuts = [sum(stacks[:k]) for k in range(len(stacks) + 1)]
    return " ".join("".join(drawn[first:last]) for first, last in pairwise(cuts))


def _coloured(drawn: str) -> list[Span]:
    spans: list[Span] = []
    for char in drawn:
        style = "activations" if char == "#" else "" if char == " " else "gradients"
        shown = "█" if char == "#" else char
        if spans and spans[-1].style == style:
            last = spans[-1]
            spans[-1] = Span(last.text + shown, style, (last.plain or "") + char)
        else:
            spans.append(Span(shown, style, char))
    return spans


def _curve(result: PlacementResult, width: int) -> list[Line]:
    points = list(result.curve)
    if len(points) > CURVE_ROWS:
        shown = {points[0].blocks_per_segment, points[-1].blocks_per_segment, result.best_blocks_per_segment}
        seen = set()
        for point in points:
            if point.segments not in seen:
                seen.add(point.segments)
                shown.add(point.blocks_per_segment)
        points = [point for point in points if point.blocks_per_segment in shown]
    top = max(max(point.allocated_bytes, point.textbook_bytes) for point in points)
    room = max(10, width - 48)
    rows: list[list[Cell]] = []
    for point in points:
        best = point.blocks_per_segment == result.best_blocks_per_segment
        style = "strong" if best else ""
        filled = max(1, round(room * point.allocated_bytes / top))
        mark = min(room - 1, round(room * max(point.textbook_bytes, 0) / top))
        bar = ["█" if at < filled else " " for at in range(room)]
        plain = ["=" if at < filled else " " for at in range(room)]
        bar[mark], plain[mark] = "┃", "+"
        rows.append(
            [
                Span(str(point.blocks_per_segment), style),
                Span(str(point.segments), style),
                Span(text_of(gib_up(point.allocated_bytes)), style),
                Span(text_of(gib_up(point.textbook_bytes)), "muted"),
                Span(f"{point.textbook_units:.1f}", "muted"),
                Span("".join(bar).rstrip(), "activations" if best else "", "".join(plain).rstrip()),
            ]
        )
    columns = [
        Column("K", right=True),
        Column("segments", right=True),
        Column("GiB", right=True),
        Column("textbook", right=True),
        Column("k+L/k", right=True, drop=1),
        Column(""),
    ]
    title = [
        Span("every:K", "heading"),
        Span("  replayed peak (bar), and what k*A + (L/k)*A says ", "muted"),
        Span("┃", "muted", "+"),
        Span(", the A of a whole stored block", "muted"),
    ]
    words = (
        f"textbook: k = sqrt({result.blocks}) = {result.textbook_segments} segments; "
        f"by real sizes: segments of {count(result.best_blocks_per_segment, 'block')}"
    )
    return wrap(title, width, rest=2) + table(columns, rows, width) + wrap([Span(words)], width, first=2, rest=4)


def _rest(result: PlacementResult, width: int) -> list[Line]:
    lines: list[Line] = []
    if result.flags:
        lines += [(Span("Run with", "heading"),), *paste(result.flags, width), ()]
    for warning in result.warnings:
        lines += wrap([Span("note: ", "note"), Span(warning)], width, rest=6)
    if result.assumptions:
        lines.append((Span("Assumptions", "heading"),))
    for item in result.assumptions:
        spans = [Span(f"{item.key} = {value_text(item.value)}"), Span(f" ({item.why})", "muted")]
        lines += wrap(spans, width, first=2, rest=4)
    return lines


def csv(result: PlacementResult) -> str:
    """One row per strategy, then one per point of the curve."""
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    writer.writerow(
        ("name", "segments", "allocated_bytes", "fits", "recomputed_fraction", "textbook_bytes", "budget_bytes")
    )
    for row in result.strategies:
        cells = (row.name, len(row.checkpoints), row.allocated_bytes, _bool(row.fits), row.recomputed_fraction, "")
        writer.writerow((*cells, result.budget_bytes))
    for point in result.curve:
        fits = _bool(point.allocated_bytes <= result.budget_bytes)
        part = (f"every:{point.blocks_per_segment}", point.segments, point.allocated_bytes, fits)
        writer.writerow((*part, point.recomputed_fraction, point.textbook_bytes, result.budget_bytes))
    return out.getvalue()


def markdown(result: PlacementResult) -> str:
    """The strategies and their segments as a table."""
    job = result.job
    heading = (
        f"**{'Within' if result.verdict != DOES_NOT_FIT else 'No placement within'} "
        f"{text_of(gib_down(result.budget_bytes))} GiB allocated:** {markup(name_of(job['model']))}, "
        f"{', '.join([job['precision'], *sample_words(job)])}, {run_words(job)}"
    )
    rows = [
        [
            f"**{row.name}**" if row.name == "optimal" else markup(row.name),
            str(len(row.checkpoints)),
            _gib(row.allocated_bytes, result),
            "yes" if row.fits else "no",
            _share(row),
            f"`{picture(row, result.stacks)}`".replace("|", "\\|"),
        ]
        for row in result.strategies
    ]
    titles = ["Checkpoints", "Segments:", "GiB:", "Fits", "Recompute:", "Blocks"]
    return page([[heading], grid(titles, rows)])


def _gib(size: int, result: PlacementResult) -> str:
    return text_of(gib_against(size, result.budget_bytes))


def _mib(size: int) -> str:
    return f"{-(-size * 10 // 2**20) / 10:,.1f}"


def _share(row: Strategy) -> str:
    return f"+{100 * row.recomputed_fraction:.1f}%" if row.recomputed_fraction else "0%"


def _bool(value: bool) -> str:
    return "true" if value else "false"
