"""What a search among plans found: the fastest, the simple one, the front, and what each choice bought."""

from __future__ import annotations

from typing import Any

from vramplan.report.compared import point_of, unit_of
from vramplan.report.csv import written
from vramplan.report.lines import Column, Line, Span, table, wrap
from vramplan.report.markdown import page
from vramplan.report.markdown import table as markdown_table
from vramplan.report.markdown import text as literal
from vramplan.report.numbers import gib_up, text_of, whole_gib
from vramplan.report.scatter_svg import scatter
from vramplan.report.times import three
from vramplan.report.whole_run import duration_text, money_text
from vramplan.results import SCHEMA_VERSION
from vramplan.results.compared import Cell
from vramplan.results.plans import Plan, Search
from vramplan.version import __version__

SHOWN = 8
NONE_FITS = "no plan fits: `vramplan fit` with the same options says what is missing, and what would make it fit"
LEGEND = (
    "F the fastest: the least complex within 5 % of the highest rate; S the simple one; * on the front: no other "
    "plan needs less memory and is as fast"
)
COMPOSED = ", ~ has techniques that were never traced together"
MARK, OPTIONS = Column(""), Column("options", fluid=True)
FIGURES = (Column("GiB", right=True), Column("batch", right=True, drop=2))
MFU = Column("MFU", right=True, drop=1)
WHOLE_RUN = (Column("takes", right=True, drop=3), Column("USD", right=True, drop=4))
"""Where a length is asked: of the fastest and the simple plan they stand above the table too."""


def document(answer: Search) -> dict[str, Any]:
    """The answer of `vramplan plan`."""
    return {"schema_version": SCHEMA_VERSION, "vramplan_version": __version__, **answer.to_dict()}


def csv(answer: Search) -> str:
    """One row per plan that fits, the fastest first."""
    names = ("flags", "complexity", *(name for name in Cell._fields if name not in ("options", "error", "efficiency")))
    return written(names, (plan.to_dict() for plan in answer.plans))


def text(answer: Search, *, width: int) -> list[Line]:
    """The winners and the plans beside them, in at most `width` columns."""
    lines: list[Line] = []
    for words in summary(answer):
        lines += wrap([Span(words)], width, first=0, rest=2)
    if answer.plans:
        places = _places(answer)
        legend = LEGEND + (COMPOSED if any(answer.plans[place].cell.is_composed for place in places) else "")
        lines += [(), *wrap([Span(legend, "muted")], width, first=0, rest=2)]
        lines += [*table(_columns(answer), [_row(answer, place) for place in places], width, indent=0)]
    if len(answer.ladder) > 1:
        lines += [(), (Span("What each choice of the fastest plan bought", "heading"),)]
        rows = [_step(step.option, step.verdict, step.device_bytes, step.gain) for step in answer.ladder]
        lines += table((Column("option"), Column("GiB", right=True), Column("rate", right=True)), rows, width)
    return lines


details = text


def markdown(answer: Search) -> str:
    """The same for a page."""
    rows = [[literal(cell) for cell in _row(answer, place)] for place in _places(answer)]
    heads = [column.title + (":" if column.right else "") for column in _columns(answer)]
    return page([[f"- {literal(words)}" for words in summary(answer)], list(markdown_table(heads, rows))])


def picture(answer: Search) -> str:
    """Memory against rate as SVG, with the front."""
    points = [
        point_of(plan.cell, plan.flags or "plain", is_front=place in answer.front)
        for place, plan in enumerate(answer.plans)
    ]
    return scatter(points, f"{len(points):,} plans that fit", unit_of(plan.cell for plan in answer.plans))


def summary(answer: Search) -> list[str]:
    """What was looked at, and which plans win."""
    looked = f"{answer.combinations:,} combinations"
    if answer.candidates > answer.combinations:
        looked += f", {answer.candidates:,} with their micro-batches"
    fit, are = ("fits", "is") if answer.fits == 1 else ("fit", "are")
    near = f"{answer.fits:,} {fit}" + (
        f" and {are} within {answer.within:.0%} of the fastest" if answer.within < 1 else ""
    )
    left = "are slower" if answer.complete else "are slower or were not looked at"
    if answer.nearest is not None and answer.complete:
        left = "are not fast enough for the limits"
    others = f"{answer.slower:,} {left}, " if answer.slower else ""
    refused = f"{answer.refused:,} the program cannot run or are not modelled"
    over = f"{answer.over_limits:,} fit and break a deadline or a budget, " if answer.over_limits else ""
    said = [f"{looked}: {near}, {others}{over}{answer.too_large:,} do not fit or might not, {refused}"]
    if answer.fastest is None and not answer.complete:
        return ["interrupted: no plan was found up to then", *said]
    if answer.fastest is None:
        if answer.nearest is not None:
            said.insert(0, f"nearest  {_words(answer.nearest)}")
        return [*said, "no plan that fits keeps its limits" if answer.over_limits else NONE_FITS]
    if not answer.complete:
        said.insert(0, "interrupted: this is the best so far")
    said.insert(0, f"fastest  {_words(answer.plans[answer.fastest])}")
    if answer.simplest is not None and answer.simplest != answer.fastest:
        said.insert(1, f"simple   {_words(answer.plans[answer.simplest])}")
    elif answer.simplest is not None:
        said.insert(1, "simple   the same: nothing simpler is within 10 % of the highest rate")
    return said


def _columns(answer: Search) -> list[Column]:
    rate = Column(unit_of(plan.cell for plan in answer.plans), right=True)
    return [MARK, *FIGURES, rate, MFU, *(WHOLE_RUN if _has_length(answer) else ()), OPTIONS]


def _has_length(answer: Search) -> bool:
    return any(plan.cell.wall_seconds is not None for plan in answer.plans)


def _taken(cell: Cell) -> tuple[str | None, str | None]:
    """How long a whole run takes, and what it costs."""
    time = None if cell.wall_seconds is None else duration_text(cell.wall_seconds)
    return time, None if cell.cost_usd is None else money_text(cell.cost_usd)


def _words(plan: Plan) -> str:
    cell = plan.cell
    rate = f"{cell.tokens_per_second:,.0f} tokens/s" if cell.tokens_per_second is not None else ""
    rate = rate or f"{three(cell.samples_per_second or 0)} samples/s"
    words = [plan.flags] if plan.flags else []
    for option, value in (("--micro-batch", cell.micro_batch_size), ("--steps", cell.gradient_accumulation_steps)):
        if option not in plan.flags.split():
            words.append(f"{option} {value}")
    time, money = _taken(cell)
    host = None if cell.host_bytes is None else f"{whole_gib(cell.host_bytes)} GiB on the host"
    figures = [rate, f"{text_of(gib_up(cell.device_bytes or 0))} GiB a GPU", host, time, money and f"{money} USD"]
    return f"{' '.join(words)}: {', '.join(figure for figure in figures if figure)}"


def _places(answer: Search) -> list[int]:
    """The first plans, the simple one and the front, the fastest first."""
    wanted = {*range(min(SHOWN, len(answer.plans))), *answer.front[-SHOWN:]}
    wanted |= {place for place in (answer.fastest, answer.simplest) if place is not None}
    return sorted(wanted)


def _row(answer: Search, place: int) -> list[str]:
    plan = answer.plans[place]
    cell = plan.cell
    marks = "".join(
        mark
        for mark, holds in (
            ("F", place == answer.fastest),
            ("S", place == answer.simplest),
            ("*", place in answer.front),
            ("~", bool(cell.is_composed)),
        )
        if holds
    )
    rate = cell.tokens_per_second if cell.tokens_per_second is not None else cell.samples_per_second or 0
    return [
        marks,
        text_of(gib_up(cell.device_bytes or 0)),
        f"{cell.micro_batch_size}x{cell.gradient_accumulation_steps}",
        f"{rate:,.0f}" if rate >= 99.5 else three(rate),
        "-" if cell.mfu_percent is None else f"{cell.mfu_percent:.0f}%",
        *([one or "-" for one in _taken(cell)] if _has_length(answer) else []),
        plan.flags or "plain",
    ]


def _step(option: str, verdict: str | None, size: int | None, gain: float | None) -> list[str]:
    bought = "-" if gain is None else f"x{gain:.2f}"
    if verdict != "fits":
        bought = "refused" if verdict is None else verdict
    return [option, "-" if size is None else text_of(gib_up(size)), bought]
