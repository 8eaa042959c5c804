"""What is said about a walk-through: the JSON document, the page for a person, rows, and Markdown.

Sizes are GB, rounded to the nearest as texts print them, so that a figure here can be held against a printed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vramplan.report import markdown as page
from vramplan.report.csv import written
from vramplan.report.headline import NARROWEST, WIDEST, value_text
from vramplan.report.lines import Cell, Column, Line, Span, table, wrap
from vramplan.report.numbers import GB, gb_near, text_of
from vramplan.results import SCHEMA_VERSION, Component
from vramplan.results.frozen import plain
from vramplan.results.walkthrough import ReplaySide, Step, TextbookSide, Walkthrough
from vramplan.tuples import NamedTuple
from vramplan.version import __version__

DISCLAIMER = "the textbook's figures are closed forms, not a prediction; none of its activation models is the truth"
ORDER = ("weights", "gradients", "master", "optimizer", "activations")
CSV = (
    *("step", "title", "precision", "activation_checkpointing", "side", "micro_batch_size"),
    *("gradient_accumulation_steps", "verdict", "component", "bytes"),
)


def document(answer: Walkthrough) -> dict[str, Any]:
    """The answer of `vramplan walkthrough`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "vramplan_version": __version__,
        "model": answer.model,
        "gpu": answer.gpu,
        "parameters": {"textbook": answer.textbook_parameters, "architecture": answer.architecture_parameters},
        "sequence_length": answer.sequence_length,
        "optimizer": answer.optimizer,
        "activation_model": answer.activation_model,
        "activation_bytes": answer.activation_bytes,
        "checkpoint_factor": answer.checkpoint_factor,
        "data_parallel_size": answer.data_parallel_size,
        "global_batch_size": answer.global_batch_size,
        "nominal_capacity_bytes": answer.nominal_capacity_bytes,
        "usable_bytes": answer.usable_bytes,
        "steps": [
            {
                "step": step.number,
                "title": step.title,
                "precision": step.precision,
                "activation_checkpointing": step.activation_checkpointing,
                "textbook": {
                    **_batch(step.textbook),
                    "components": _parts(step.textbook.components),
                    "total_bytes": step.textbook.total_bytes,
                    "change_fraction": step.textbook.change,
                    "verdict": step.textbook.verdict,
                },
                "replay": {
                    **_batch(step.replay),
                    "components": _parts(step.replay.components),
                    "allocated_bytes": step.replay.allocated_bytes,
                    "device_bytes": step.replay.device_bytes,
                    "attention": step.replay.attention,
                    "phase": step.replay.phase,
                    "operator": step.replay.operator,
                    "change_fraction": step.replay.change,
                    "verdict": step.replay.verdict,
                },
                "reasons": list(step.reasons),
            }
            for step in answer.steps
        ],
        "assumptions": [{"key": item.key, "value": plain(item.value), "why": item.why} for item in answer.assumptions],
        "warnings": [DISCLAIMER, *answer.warnings],
    }


def _batch(side: TextbookSide | ReplaySide) -> dict[str, int]:
    return {
        "micro_batch_size": side.micro_batch_size,
        "gradient_accumulation_steps": side.gradient_accumulation_steps,
    }


def _parts(parts: Sequence[Component]) -> list[dict[str, Any]]:
    return [{"name": part.name, "bytes": part.bytes, "basis": part.basis} for part in parts]


class _Row(NamedTuple):
    """One component on both sides, in hundredths of a GB; None where a side does not have it."""

    name: str
    textbook: int | None
    replay: int | None


SCREEN = 24  # lines of a terminal
STATES = ("weights", "gradients", "master", "optimizer")


def text(answer: Walkthrough, *, width: int | None) -> list[Line]:
    """One screen: what texts print, what a replayed step allocates, and why they differ."""
    width = max(NARROWEST, min(width or 80, WIDEST))
    lines = wrap([Span("Walk-through", "heading"), Span(f"  {subject(answer)}", "strong")], width, rest=2)
    counted = f"for {answer.textbook_parameters:,} parameters"
    if answer.activation_bytes is None:
        title = [
            Span("By the textbook", "heading"),
            Span(f"  {counted}, equation {answer.activation_model}; GB", "muted"),
        ]
    else:
        title = [Span("What texts print", "heading"), Span(f"  {counted}, as they round them; GB", "muted")]
    book = [(step, step.textbook, step.textbook.total_bytes) for step in answer.steps]
    replay = [(step, step.replay, step.replay.allocated_bytes) for step in answer.steps]
    lines += [(), *wrap(title, width, rest=2), *_side(book, width)]
    for said in _sources(answer):
        lines += wrap([Span(said, "muted")], width, first=2, rest=2)
    title = [
        Span("What a step allocates", "heading"),
        Span(f"  replayed, for {answer.architecture_parameters:,} parameters; GB", "muted"),
    ]
    lines += [(), *wrap(title, width, rest=2), *_side(replay, width)]
    first = ("activations:", "attention scores:", "temporaries:")  # the largest differences
    reasons = sorted(answer.steps[0].reasons[1:], key=lambda reason: not reason.startswith(first))
    why: list[Line] = []
    left = SCREEN - 1 - len(lines) - 3  # under the prompt, with the title of these, an empty line and the last one
    for reason in reasons:
        paragraph = wrap([Span("- "), Span(reason)], width, first=2, rest=4)
        if len(why) + len(paragraph) <= left:
            why += paragraph
    if why:
        lines += [(), (Span("Why they differ", "heading"), Span("  in step 1", "muted")), *why]
    return [*lines, (Span("  every step, and all reasons: --details", "muted"),)]


def _side(rows: Sequence[tuple[Step, TextbookSide | ReplaySide, int]], width: int) -> list[Line]:
    """The four steps as one side has them."""
    cells: list[list[Cell]] = []
    for step, side, total in rows:
        sizes = {part.name: part.bytes for part in side.components}
        states, stored = sum(sizes.get(name, 0) for name in STATES), sizes.get("activations", 0)
        batch = f"{side.micro_batch_size} × {side.gradient_accumulation_steps}"
        title = ("+ " if step.number > 1 else "") + step.title
        other = total - states - stored
        figures = [gb(states), gb(stored), gb(other) if other else "-"]
        whole: list[Cell] = [Span(gb(total), "strong"), change(side.change), Span(side.verdict, side.verdict)]
        cells.append([str(step.number), title, batch, *figures, *whole])
    columns = [
        Column(""),
        Column("step"),
        Column("batch", right=True, drop=3),
        Column("states", right=True),
        Column("activations", right=True),
        Column("other", right=True, drop=4),
        Column("total", right=True),
        Column("", right=True, drop=2),
        Column("verdict", drop=1),
    ]
    return table(columns, cells, width)


def _sources(answer: Walkthrough) -> Iterator[str]:
    """Where the textbook's figures are from."""
    states = "states: arXiv:1910.02054 (3.1)"
    if answer.activation_bytes is None:
        yield f"{states}; activations: docs/textbook.md"
    else:
        yield f"{states}; activations: {gb(answer.activation_bytes)} GB quoted, not derived"


def details(answer: Walkthrough, *, width: int | None) -> list[Line]:
    """The summary of all steps, then each with its components and the reasons."""
    width = max(NARROWEST, min(width or 80, WIDEST))
    lines = _head(answer, width)
    lines += [(), *_summary(answer, width)]
    for step in answer.steps:
        lines += [(), *_step(step, answer, width)]
    lines += [(), (Span("Assumptions", "heading"),)]
    for item in answer.assumptions:
        said = f"{item.key} = {value_text(plain(item.value))}"
        lines += wrap([Span(said), Span(f" ({item.why})", "muted")], width, first=2, rest=4)
    return lines


def _head(answer: Walkthrough, width: int) -> list[Line]:
    title = [Span("Walk-through", "heading"), Span(f"  {subject(answer)}", "strong")]
    lines = wrap(title, width, rest=2)
    for key, said in facts(answer):
        lines += wrap([Span(f"{key.ljust(12)} ", "muted"), Span(said)], width, first=2, rest=15)
    for warning in (DISCLAIMER, *answer.warnings):
        lines += wrap([Span("note: ", "note"), Span(warning)], width, first=2, rest=8)
    return lines


def subject(answer: Walkthrough) -> str:
    """`gpt2-xl on v100, adamw, 1024 tokens`."""
    return f"{answer.model} on {answer.gpu}, {answer.optimizer}, {answer.sequence_length} tokens"


def facts(answer: Walkthrough) -> Iterator[tuple[str, str]]:
    """What both sides start from."""
    count = f"{answer.architecture_parameters:,}, counted from the architecture"
    if answer.textbook_parameters != answer.architecture_parameters:
        count += f"; the text rounds to {answer.textbook_parameters:,}"
    yield "parameters", count
    if answer.activation_bytes is not None:
        micro = answer.steps[0].textbook.micro_batch_size
        quoted = f"{gb(answer.activation_bytes)} GB in fp32, quoted for micro-batch {micro}"
        yield "activations", quoted
    else:
        yield "activations", f"by the equation {answer.activation_model}"
    if answer.checkpoint_factor is not None:
        yield "checkpoints", f"divide the activations by {answer.checkpoint_factor:g}"
    nominal, usable = gb(answer.nominal_capacity_bytes), gb(answer.usable_bytes)
    yield "capacity", f"{nominal} GB nominal for the textbook, {usable} GB usable for the replay"


def _summary(answer: Walkthrough, width: int) -> list[Line]:
    rows: list[list[Cell]] = []
    for step in answer.steps:
        book, replay = step.textbook, step.replay
        rows.append(
            [
                str(step.number),
                ("+ " if step.number > 1 else "") + step.title,
                Span(gb(book.total_bytes), "strong"),
                change(book.change),
                Span(book.verdict, book.verdict),
                Span(gb(replay.allocated_bytes), "strong"),
                change(replay.change),
                Span(replay.verdict, replay.verdict),
            ]
        )
    columns = [
        Column(""),
        Column("step"),
        Column("textbook", right=True),
        Column("", right=True, drop=4),
        Column("verdict", drop=1),
        Column("replay", right=True),
        Column("", right=True, drop=3),
        Column("verdict", drop=2),
    ]
    title = [Span("The four steps", "heading"), Span("  GB, and the change against the step before", "muted")]
    return wrap(title, width, rest=2) + table(columns, rows, width)


def _step(step: Step, answer: Walkthrough, width: int) -> list[Line]:
    title = [Span(f"{step.number}. {step.title}", "heading"), Span(f"  {setting(step, answer)}", "muted")]
    lines = wrap(title, width, rest=4)
    cells: list[list[Cell]] = []
    for row in rows_of(step):
        style = "strong" if row.name == "total" else ""
        shown = (row.name, cell(row.textbook), cell(row.replay), difference(row))
        cells.append([Span(word, style) for word in shown])
    columns = [
        Column("GB"),
        Column("textbook", right=True),
        Column("replay", right=True),
        Column("difference", right=True),
    ]
    lines += table(columns, cells, width)
    for reason in step.reasons:
        lines += wrap([Span("- "), Span(reason)], width, first=2, rest=4)
    return lines


def setting(step: Step, answer: Walkthrough) -> str:
    """`mixed-fp16, checkpointing sqrt, efficient attention, micro-batch 16`, the batch twice where the sides differ."""
    words = f"{step.precision}, checkpointing {step.activation_checkpointing}, {step.replay.attention} attention, "
    book, replay = batch_words(step.textbook, answer), batch_words(step.replay, answer)
    return words + (book if book == replay else f"{book} by the textbook, {replay} replayed")


def batch_words(side: TextbookSide | ReplaySide, answer: Walkthrough) -> str:
    """`micro-batch 16 x 4 accumulation steps x 8 GPUs = 512`."""
    steps, ranks = side.gradient_accumulation_steps, answer.data_parallel_size
    words = f"micro-batch {side.micro_batch_size}"
    if steps > 1 or ranks > 1:
        words += f" × {steps} accumulation {'step' if steps == 1 else 'steps'}"
        words += f" × {ranks} GPUs" if ranks > 1 else ""
        words += f" = {side.micro_batch_size * steps * ranks}"
    return words


def rows_of(step: Step) -> list[_Row]:
    """The components in the textbook's order, then those that only the replay has, then the total."""
    book = _shares(step.textbook.components, step.textbook.total_bytes)
    replay = _shares(step.replay.components, step.replay.allocated_bytes)
    names = [name for name in ORDER if name in book or name in replay]
    names += [name for name in replay if name not in names]
    rows = [_Row(name, book.get(name), replay.get(name)) for name in names]
    rows = [row for row in rows if row.textbook or row.replay]
    return [*rows, _Row("total", gb_near(step.textbook.total_bytes), gb_near(step.replay.allocated_bytes))]


def _shares(parts: Sequence[Component], total_bytes: int) -> dict[str, int]:
    """Hundredths of a GB for each part, that add up to the shown total."""
    shares = {part.name: part.bytes * 100 // GB for part in parts}
    left = gb_near(total_bytes) - sum(shares.values())
    by_remainder = sorted(parts, key=lambda part: -(part.bytes * 100 % GB))
    for part in by_remainder[:left]:
        shares[part.name] += 1
    return shares


def gb(size_bytes: int) -> str:
    """A size in GB with one decimal, to the nearest."""
    return f"{size_bytes / GB:.1f}"


def cell(hundredths: int | None) -> str:
    """A size in a table; a dash for what a side does not have."""
    return "-" if hundredths is None else text_of(hundredths)


def difference(row: _Row) -> str:
    """What the replay has more, with its sign."""
    number = (row.replay or 0) - (row.textbook or 0)
    return f"+{text_of(number)}" if number > 0 else text_of(number)


def change(share: float | None) -> str:
    """`-37%`; nothing for the first step."""
    return "" if share is None else f"{share:+.0%}"


def csv(answer: Walkthrough) -> str:
    """One row per step, side and component, and one for each total."""
    rows = []
    for step in answer.steps:
        sides = (
            ("textbook", step.textbook, step.textbook.total_bytes),
            ("replay", step.replay, step.replay.allocated_bytes),
        )
        for name, side, total in sides:
            common = {
                "step": step.number,
                "title": step.title,
                "precision": step.precision,
                "activation_checkpointing": step.activation_checkpointing,
                "side": name,
                "verdict": side.verdict,
                **_batch(side),
            }
            parts = [*((part.name, part.bytes) for part in side.components), ("total", total)]
            rows += [{**common, "component": part, "bytes": size} for part, size in parts]
    return written(CSV, rows)


def markdown(answer: Walkthrough) -> str:
    """The same as the text, as tables for a comment."""
    text = page.text
    sections: list[Sequence[str]] = [
        [f"## Walk-through: {text(subject(answer))}"],
        *([f"> note: {text(warning)}"] for warning in (DISCLAIMER, *answer.warnings)),
        [f"- {key}: {text(said)}" for key, said in facts(answer)],
    ]
    cells = [
        [
            f"{step.number}. {text(step.title)}",
            *(gb(step.textbook.total_bytes), change(step.textbook.change), step.textbook.verdict),
            *(gb(step.replay.allocated_bytes), change(step.replay.change), step.replay.verdict),
        ]
        for step in answer.steps
    ]
    columns = ("step", "textbook GB:", "change:", "verdict", "replay GB:", "change:", "verdict")
    sections.append(page.table(columns, cells))
    for step in answer.steps:
        said = text(setting(step, answer).replace("×", "x"))
        rows = []
        for row in rows_of(step):
            shown = [text(row.name), cell(row.textbook), cell(row.replay), difference(row)]
            rows.append([f"**{word}**" for word in shown] if row.name == "total" else shown)
        table_lines = page.table(("GB", "textbook:", "replay:", "difference:"), rows)
        reasons = [f"- {text(reason)}" for reason in step.reasons]
        sections.append([f"### {step.number}. {text(step.title)}: {said}", "", *table_lines, "", *reasons])
    taken = [[text(item.key), text(value_text(plain(item.value))), text(item.why)] for item in answer.assumptions]
    sections.append(["### Assumptions", "", *page.table(("key", "value", "why"), taken)])
    return page.page(sections)
