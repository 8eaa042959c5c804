"""What a person sees of `check`, `validate`, `gpus`, `models` and `show`: one line per thing, nothing hidden.

`width` None is for a pipe: no cell is elided and no line is wrapped, so that a script gets everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramplan.errors import Problem
from vramplan.report.headline import value_text
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.numbers import count, gib_against, gib_down, percent_up, text_of
from vramplan.results import TIGHT
from vramplan.results.listings import (
    CheckRow,
    CheckSummary,
    FieldRow,
    GpuRow,
    ModelRow,
    ProfileView,
)

ENDLESS = 1_000_000
ABOVE = "not computed: see the error"  # which is on standard error, and not said twice on a terminal
_ORIGIN = 24  # columns for the folder that a profile is from
_BESIDE_ALIASES = 46  # columns of a line of `gpus` beside the name and the other names


def render_check(
    rows: Iterable[CheckRow], summary: CheckSummary | None = None, *, width: int | None = None
) -> list[Line]:
    """One line per job and the count at the end. TIGHT is a pass whose range reaches above the usable memory."""
    rows = tuple(rows)
    summary = summary or CheckSummary.of(rows)
    several = len({row.file for row in rows}) > 1
    cells: list[list[Cell]] = []
    for row in rows:
        name = f"{row.file or '-'}#{row.name}" if several else row.name
        if row.result is None:
            cells.append([Span("ERROR", "error"), name, "-", "-", "-", ABOVE])
            continue
        result = row.result
        state = Span("PASS", "passed") if row.passed else Span("FAIL", "failed")
        if row.passed and result.verdict == TIGHT:
            state = Span("TIGHT", "tight")
        device = gib_against(result.peak.device_bytes, result.usable_bytes)
        cells.append(
            [
                state,
                name,
                text_of(device),
                text_of(gib_down(result.usable_bytes)),
                percent_up(result.peak.device_bytes, result.usable_bytes),
                Span("; ".join(row.reasons), "" if not row.passed else "muted"),
            ]
        )
    columns = [
        Column("status"),
        Column("job", most=40),
        Column("GPU GiB", right=True),
        Column("usable GiB", right=True, drop=2),
        Column("used", right=True, drop=1),
        Column("reason", fluid=True),
    ]
    lines = table(columns, cells, width, indent=0)
    lines.append(())
    parts = [Span(f"{count(summary.total, 'job')}: "), Span(f"{summary.passed} passed")]
    for before, number, word, style in (
        (", ", summary.failed, "failed", "failed"),
        (", ", summary.errors, "error" if summary.errors == 1 else "errors", "error"),
        ("; ", summary.tight, "tight", "tight"),
    ):
        parts += [Span(before), Span(f"{number} {word}", style if number else "")]
    return lines + wrap(parts, width or ENDLESS)


def render_gpus(rows: Iterable[GpuRow], *, width: int | None = None) -> list[Line]:
    """The GPUs that have a profile. `?` is unknown; nominal memory is what the data sheet says, not what is visible.

    On a terminal each has one line, with as many of its other names as that holds.
    """
    rows = tuple(rows)
    elsewhere = _elsewhere(rows)
    beside = _BESIDE_ALIASES + (_ORIGIN + 2 if elsewhere else 0)
    room = None if width is None else width - max((len(row.name) for row in rows), default=0) - beside
    cells: list[list[Cell]] = [
        [
            Span(row.name, "strong"),
            text_of(gib_down(row.capacity_bytes)),
            Span(row.capacity_basis, "muted"),
            yes(row.bf16),
            yes(row.flash_attention),
            row.architecture or "?",
            *([Span(row.origin)] if elsewhere else []),
            Span(_first(row.aliases, room), "muted"),
        ]
        for row in rows
    ]
    columns = [
        Column("name", most=32),
        Column("GiB", right=True),
        Column("memory", drop=2),
        Column("bf16"),
        Column("flash"),
        Column("architecture", drop=3),
        *([Column("from", most=_ORIGIN, drop=1)] if elsewhere else []),
        Column("also called", drop=4, fluid=True),
    ]
    return table(columns, cells, width, indent=0)


def _first(names: Sequence[str], room: int | None) -> str:
    """As many of `names` as have room, and dots for the rest."""
    count = len(names)
    while room is not None and count and len(_some(names, count)) > room:
        count -= 1
    return _some(names, count) if count else ""


def _some(names: Sequence[str], count: int) -> str:
    return ", ".join([*names[:count], *([".."] if count < len(names) else [])])


def _elsewhere(rows: Iterable[GpuRow | ModelRow]) -> bool:
    """Whether a profile is not a shipped one, so that it is worth saying where each is from."""
    return any(row.origin != "shipped" for row in rows)


def render_models(rows: Iterable[ModelRow], *, width: int | None = None) -> list[Line]:
    """The models that have a profile."""
    rows = tuple(rows)
    elsewhere = _elsewhere(rows)

    def number(value: int | None) -> str:
        return "?" if value is None else str(value or "-")

    cells: list[list[Cell]] = [
        [
            Span(row.name, "strong"),
            row.family,
            "?" if row.parameters is None else f"{row.parameters:,}",
            number(row.layers),
            number(row.hidden_size),
            number(row.attention_heads),
            number(row.key_value_heads),
            "-" if row.vocabulary_size == 0 else number(row.vocabulary_size),
            number(row.max_positions),
            *([Span(row.origin)] if elsewhere else []),
        ]
        for row in rows
    ]
    columns = [
        Column("name", most=32),
        Column("family", most=8),
        Column("parameters", right=True),
        Column("layers", right=True),
        Column("hidden", right=True, drop=1),
        Column("heads", right=True, drop=3),
        Column("kv heads", right=True, drop=4),
        Column("vocabulary", right=True, drop=5),
        Column("positions", right=True, drop=2),
        *([Column("from", most=_ORIGIN)] if elsewhere else []),
    ]
    return table(columns, cells, width, indent=0)


def render_profile(view: ProfileView, *, width: int | None = None) -> list[Line]:
    """Every field as published, with where it was published and when it was read."""
    wide = width or ENDLESS
    title = [Span(view.name, "heading")]
    if view.title:
        title.append(Span("  " + view.title))
    lines = wrap(title, wide, rest=2)
    for key, value in (("also called", ", ".join(view.aliases)), ("file", view.file or "")):
        if value:
            lines += wrap([Span(f"{key}: ", "muted"), Span(value)], wide, first=2, rest=4)
    for note in view.notes:
        lines += wrap([Span("note: ", "note"), Span(note)], wide, first=2, rest=8)
    lines.append(())
    column = max((len(row.key) for row in view.fields), default=0)
    if width is not None:
        column = min(column, width // 2)
    for row in view.fields:
        lines += _field(row, column, wide)
    return lines


def _field(row: FieldRow, column: int, width: int) -> list[Line]:
    value = value_text(row.value)
    if row.unit and row.value is not None:
        value += f" {row.unit}"
    spans = [Span(row.key.ljust(column) + "  "), Span(value, "strong" if row.value is not None else "muted")]
    lines = wrap(spans, width, first=2, rest=column + 4)
    below = []
    if row.value is None and row.reason:
        below.append(row.reason)
    if row.note:
        below.append(row.note)
    if row.fitted_from:
        below.append(f"chosen in sight of published runs: {', '.join(row.fitted_from)}")
    if row.source is not None:
        below.append(", ".join(part for part in (row.source.title, row.source.date) if part))
        below.append(row.source.url or "")
    for text in below:
        if text:
            lines += wrap([Span(text, "muted")], width, first=6, rest=8)
    return lines


def yes(known: bool | None) -> str:
    """A word for what may be unknown."""
    return "?" if known is None else "yes" if known else "no"


def problems_text(problems: Sequence[Problem]) -> str:
    """The problems of a job on one line."""
    return "; ".join(str(problem) for problem in problems)
