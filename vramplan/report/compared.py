"""Runs side by side, as a table with the winners below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vramplan.options.flags import quoted
from vramplan.report.csv import written
from vramplan.report.lines import Cell as Text
from vramplan.report.lines import Column, Line, Span, table, wrap
from vramplan.report.markdown import page
from vramplan.report.markdown import table as markdown_table
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import gib_against, gib_down, text_of
from vramplan.report.scatter_svg import ScatterPoint, scatter
from vramplan.report.times import seconds_text, three
from vramplan.report.whole_run import duration_text, money_text
from vramplan.results import FITS, SCHEMA_VERSION
from vramplan.results.compared import Cell, Comparison
from vramplan.version import __version__

STYLES = {"fits": "fits", "tight": "tight", "does-not-fit": "does-not-fit"}
SHORT = {"does-not-fit": "no"}


def document(answer: Comparison) -> dict[str, Any]:
    """The answer of `vramplan compare` and `vramplan scale`."""
    return {"schema_version": SCHEMA_VERSION, "vramplan_version": __version__, **answer.to_dict()}


def csv(answer: Comparison) -> str:
    """One row per run; the options that differ come first."""
    figures = [name for name in Cell._fields if name != "options"]
    rows = ({**cell.options, **{name: getattr(cell, name) for name in figures}} for cell in answer.cells)
    return written((*answer.axes, *figures), rows)


def text(answer: Comparison, *, width: int | None) -> list[Line]:
    """The table and what wins, in at most `width` columns; None: nothing is wrapped or left out."""
    lines = table(_columns(answer), _rows(answer), width, indent=0)
    lines.append(())
    for words in winners(answer):
        lines += [(Span(words),)] if width is None else wrap([Span(words)], width, first=0, rest=2)
    return lines


details = text


def markdown(answer: Comparison) -> str:
    """The same as a table for a page."""
    columns = [column.title + (":" if column.right else "") for column in _columns(answer)]
    rows = [[literal(_plain(one)) for one in row] for row in _rows(answer)]
    return page([table_lines(columns, rows), [f"- {literal(words)}" for words in winners(answer)]])


def table_lines(columns: list[str], rows: list[list[str]]) -> list[str]:
    """A table in Markdown."""
    return list(markdown_table(columns, rows))


def picture(answer: Comparison) -> str:
    """Memory against rate as SVG, of the runs that fit."""
    cells = [cell for cell in answer.cells if cell.is_possible and cell.samples_per_second is not None]
    points = [point_of(cell, named(cell), is_front=False) for cell in cells]
    points = [
        point._replace(is_front=not any(one.gib <= point.gib and one.rate > point.rate for one in points))
        for point in points
    ]
    return scatter(points, f"{len(points)} of {len(answer.cells)} runs fit", unit_of(cells))


def point_of(cell: Cell, label: str, *, is_front: bool) -> ScatterPoint:
    """A run in a picture."""
    rate = cell.tokens_per_second if cell.tokens_per_second is not None else cell.samples_per_second or 0.0
    return ScatterPoint((cell.device_bytes or 0) / 2**30, rate, label, is_front)


def unit_of(cells: Iterable[Cell]) -> str:
    """The unit of their rates."""
    return "samples/s" if any(cell.tokens_per_second is None for cell in cells) else "tokens/s"


def winners(answer: Comparison) -> list[str]:
    """The fastest, the cheapest, and what to heed."""
    said = []
    for title, place, figure in (
        ("fastest", answer.fastest, "tokens_per_second"),
        ("cheapest", answer.cheapest, "usd_per_million_tokens"),
        ("cheapest by the hour", answer.cheapest_hour, "usd_per_hour"),
    ):
        if place is not None:
            cell = answer.cells[place]
            said.append(f"{title}: {named(cell)}{_with(cell, figure)}")
    refused = sum(cell.error is not None for cell in answer.cells)
    if any(cell.is_possible for cell in answer.cells):
        if not said:
            said.append("no run has a rate or a price to compare: those of the GPU are not known")
    elif any(cell.verdict == FITS for cell in answer.cells):
        said.append("none of them fits and keeps its limits")
    elif refused < len(answer.cells):
        way = "" if answer.advice else "; `vramplan fit` with the options of one says what would make it fit"
        said.append(f"none of them fits{way}")
    said += _unjudged(answer)
    estimated = sum(bool(cell.is_estimated) for cell in answer.cells)
    if estimated:
        runs = "1 run is" if estimated == 1 else f"{estimated:,} runs are"
        said.append(f"{runs} estimated (est.), as there are many: `fit` simulates the allocator of these")
    if refused:
        first = next(cell for cell in answer.cells if cell.error is not None)
        said.append(f"{refused} of {len(answer.cells)} cannot be computed; {named(first)}: {first.error}")
    return [*said, *answer.advice]


def _unjudged(answer: Comparison) -> Iterator[str]:
    """The runs whose limits nobody can judge, by reason."""
    reasons: dict[str, list[Cell]] = {}
    for cell in answer.cells:
        if cell.unjudged is not None:
            reasons.setdefault(cell.unjudged, []).append(cell)
    for reason, cells in reasons.items():
        others = f" and {len(cells) - 1:,} others" if len(cells) > 1 else ""
        yield f"not judged by its limits: {named(cells[0])}{others}: {reason}"


def named(cell: Cell) -> str:
    """The options that are special about a run, as they are typed."""
    return " ".join(f"--{key} {quoted(str(value))}" for key, value in cell.options.items()) or "the run"


def _with(cell: Cell, figure: str) -> str:
    value = getattr(cell, figure)
    if value is None and figure == "tokens_per_second" and cell.samples_per_second is not None:
        return f", {three(cell.samples_per_second)} samples/s"
    if value is None:
        return ""
    if figure == "tokens_per_second":
        return f", {value:,.0f} tokens/s"
    unit = "a million tokens" if figure == "usd_per_million_tokens" else "an hour"
    return f", {money_text(value)} USD {unit}"


def _columns(answer: Comparison) -> list[Column]:
    scales, whole = _scales(answer), _is_whole(answer)
    return [
        *(Column(axis) for axis in answer.axes),
        Column("verdict"),
        Column("GiB", right=True),
        Column("of", right=True, drop=4),
        Column("batch", right=True, drop=2),
        Column("largest", right=True, drop=5),
        Column("checkpoints", drop=6, most=12),
        Column("step", right=True, drop=3),
        Column("tokens/s", right=True),
        *([Column("each", right=True)] if scales else []),
        Column("MFU", right=True, drop=1),
        Column("USD/h", right=True, drop=7),
        Column("USD/Mtok", right=True, drop=1 if whole else 0),  # the last to go, where the whole run has its cost
        *([Column("takes", right=True), Column("USD", right=True)] if whole else []),
    ]


def _scales(answer: Comparison) -> bool:
    """Whether it says what each device does."""
    return any(cell.efficiency is not None for cell in answer.cells)


def _is_whole(answer: Comparison) -> bool:
    """Whether it says what whole runs take."""
    return any(cell.wall_seconds is not None for cell in answer.cells)


def _rows(answer: Comparison) -> list[list[Text]]:
    scales, whole = _scales(answer), _is_whole(answer)
    return [_row(cell, scales=scales, whole=whole) for cell in answer.cells]


def _row(cell: Cell, *, scales: bool, whole: bool) -> list[Text]:
    verdict = "error" if cell.verdict is None else SHORT.get(cell.verdict, cell.verdict)
    limits = "limit" if cell.keeps_limits is False else "limit?" if cell.unjudged is not None else ""
    marks = [mark for mark in (limits, "est." if cell.is_estimated else "") if mark]
    rate = cell.tokens_per_second if cell.tokens_per_second is not None else cell.samples_per_second
    batch = None
    if cell.micro_batch_size is not None:
        batch = f"{cell.micro_batch_size}x{cell.gradient_accumulation_steps or 1}"
    return [
        *cell.options.values(),
        Span(verdict + (f" ({', '.join(marks)})" if marks else ""), STYLES.get(cell.verdict or "", "error")),
        _or_dash(
            None if cell.device_bytes is None else text_of(gib_against(cell.device_bytes, cell.usable_bytes or 0))
        ),
        _or_dash(None if cell.usable_bytes is None else text_of(gib_down(cell.usable_bytes))),
        _or_dash(batch),
        _or_dash(None if cell.largest_micro_batch_size is None else str(cell.largest_micro_batch_size)),
        _or_dash(cell.activation_checkpointing),
        _or_dash(None if cell.step_seconds is None else seconds_text(cell.step_seconds)),
        _or_dash(None if rate is None else f"{rate:,.0f}" if rate >= 99.5 else three(rate)),
        *([_or_dash(None if cell.efficiency is None else f"{cell.efficiency:.0%}")] if scales else []),
        _or_dash(None if cell.mfu_percent is None else f"{cell.mfu_percent:.0f}%"),
        _or_dash(None if cell.usd_per_hour is None else money_text(cell.usd_per_hour)),
        _or_dash(None if cell.usd_per_million_tokens is None else money_text(cell.usd_per_million_tokens)),
        *(
            [
                _or_dash(None if cell.wall_seconds is None else duration_text(cell.wall_seconds)),
                _or_dash(None if cell.cost_usd is None else money_text(cell.cost_usd)),
            ]
            if whole
            else []
        ),
    ]


def _or_dash(text: str | None) -> str:
    return "-" if text is None else text


def _plain(cell: Text) -> str:
    return cell if isinstance(cell, str) else cell.text
