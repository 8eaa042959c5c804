"""Markdown for a comment on a pull request, in GitHub's dialect, which GitLab and others read too.

What comes from outside (names, reasons, figures' bases) is text: nothing in it is taken for markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from vramplan.report.advice import TITLE, advice_rows
from vramplan.report.allocator import allocator_facts
from vramplan.report.headline import (
    changes_title,
    judged_words,
    margin_words,
    notes,
    room_words,
    strategy,
    subject,
    value_text,
    verdict_words,
)
from vramplan.report.host import host_facts
from vramplan.report.lines import clean
from vramplan.report.lists import problems_text, yes
from vramplan.report.memory import (
    MOST_REMEDIES,
    ShownFigures,
    alone,
    by_textbook,
    heading,
    host_words,
    is_shared,
    memory_rows,
)
from vramplan.report.numbers import count, gib_against, gib_down, gib_up, percent, percent_up, share_text, text_of
from vramplan.report.solved import solved_words
from vramplan.report.times import rate_of_all, time_facts
from vramplan.report.validated import RATE_COLUMNS, error_text, named_metrics, rate_rows, unspecified_text
from vramplan.report.whole_run import TITLE as RUN_TITLE
from vramplan.report.whole_run import run_facts
from vramplan.results import DOES_NOT_FIT, TIGHT, FitResult
from vramplan.results.listings import (
    CheckRow,
    CheckSummary,
    ErrorStats,
    GpuRow,
    ModelRow,
    ProfileView,
    ValidateRow,
    ValidateSummary,
)

# An underscore between letters is never markup.
_MARKUP = re.compile(r"[\\`*\[\]<>|~&$#@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}  # no tag, no entity, no mention


def text(value: object) -> str:
    """Any text as one line that reads as it is written."""
    return _MARKUP.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), clean(str(value)))


def render_fit(result: FitResult) -> str:
    """The verdict, what to run, the memory at the peak, the ladder, the remedies, and the assumptions folded away."""
    figures = ShownFigures(result)
    sections = [
        headline(result, figures),
        [] if result.solved is None else [text(solved_words(result.solved, result.job))],
        _run(result),
        _time(result),
        _memory(result, figures),
        _host(result),
        _allocator(result),
        _ladder(result),
        _remedies(result, figures),
        _whole_run(result),
        _advice(result),
        _assumptions(result),
    ]
    return page(sections)


def _time(result: FitResult) -> list[str]:
    """How long a step takes."""
    if result.time is None:
        return []
    return [
        "### Time of a step",
        "",
        *table(("", ""), [(name, text(value)) for name, value in time_facts(result.time)]),
    ]


def _host(result: FitResult) -> list[str]:
    """Memory of the host, where the job offloads."""
    if result.host is None:
        return []
    return [f"- {name}: {value}" for name, value in host_facts(result.host)]


def _allocator(result: FitResult) -> list[str]:
    """What the caching allocator did, where it is simulated."""
    if result.allocator is None:
        return []
    return [f"- {name}: {value}" for name, value in allocator_facts(result.allocator)]


def render_check(rows: Iterable[CheckRow]) -> str:
    """One row per job, and the summary above them."""
    rows = tuple(rows)
    summary = CheckSummary.of(rows)
    parts = [f"{summary.passed} passed", f"{summary.failed} failed", count(summary.errors, "error")]
    heading = f"**{count(summary.total, 'job')}:** {', '.join(parts)}; {summary.tight} tight"
    several = len({row.file for row in rows}) > 1
    cells = []
    for row in rows:
        name = text(f"{row.file or '-'}#{row.name}" if several else row.name)
        if row.result is None:
            cells.append(["**ERROR**", name, "-", "-", "-", text(problems_text(row.problems))])
            continue
        device, usable = row.result.peak.device_bytes, row.result.usable_bytes
        state = "**FAIL**" if not row.passed else "TIGHT" if row.result.verdict == TIGHT else "PASS"
        sizes = [text_of(gib_against(device, usable)), text_of(gib_down(usable)), percent_up(device, usable)]
        cells.append([state, name, *sizes, text("; ".join(row.reasons))])
    columns = ("status", "job", "GPU GiB:", "usable GiB:", "used:", "reason")
    return page([[heading], table(columns, cells)])


def render_validate(rows: Iterable[ValidateRow]) -> str:
    """How good the predictions are, per metric and per runtime, and every case."""
    rows = tuple(rows)
    summary = ValidateSummary.of(rows)
    heading = (
        f"**{count(summary.computed + summary.errors, 'case')}:** "
        f"{summary.computed} computed, {count(summary.errors, 'error')}"
    )
    if summary.outcomes_total:
        right = f"{summary.outcomes_right} of {count(summary.outcomes_total, 'case')}"
        heading += f"; {right} fit or run out of memory as predicted"
    sections = [[heading], _stats("metric", named_metrics(summary)), _stats("runtime", summary.per_runtime)]
    if summary.rates is not None and summary.rates.count:
        cells = [[name, *figures] for name, *figures in rate_rows(summary.rates)]
        sections.append(["### Error of the rate", "", *table(("rate", *(f"{word}:" for word in RATE_COLUMNS)), cells)])
    if unspecified_text(summary):
        sections.append([text(f"{unspecified_text(summary)}.")])
    cells = []
    for row in rows:
        sizes = ["-" if size is None else text_of(gib_up(size)) for size in (row.predicted_bytes, row.measured_bytes)]
        error = error_text(row)
        words = [text(word or "-") for word in (row.metric, row.runtime)]
        outcomes = [text(word or "-") for word in (row.outcome, row.measured_outcome)]
        note = text(problems_text(row.problems)) if row.result is None else ""
        cells.append([text(row.name), *words, *sizes, error, *outcomes, note])
    columns = (
        "case",
        "metric",
        "runtime",
        "predicted GiB:",
        "measured GiB:",
        "error:",
        "predicted",
        "measured",
        "note",
    )
    return page([*sections, table(columns, cells)])


def render_gpus(rows: Iterable[GpuRow]) -> str:
    """One row per GPU."""
    columns = ("name", "GiB:", "memory", "bf16", "flash", "architecture", "also called", "from")
    cells = [
        [
            text(row.name),
            text_of(gib_down(row.capacity_bytes)),
            row.capacity_basis,
            yes(row.bf16),
            yes(row.flash_attention),
            text(row.architecture or "?"),
            text(", ".join(row.aliases)),
            text(row.origin),
        ]
        for row in rows
    ]
    return page([table(columns, cells)])


def render_models(rows: Iterable[ModelRow]) -> str:
    """One row per model."""
    columns = (
        *("name", "family", "parameters:", "layers:", "hidden:", "heads:", "kv heads:", "vocabulary:", "positions:"),
        "also called",
        "from",
    )
    cells = []
    for row in rows:
        sizes = (row.layers, row.hidden_size, row.attention_heads, row.key_value_heads)
        numbers = [*sizes, row.vocabulary_size, row.max_positions]
        parameters = "?" if row.parameters is None else f"{row.parameters:,}"
        shown = ["?" if number is None else str(number) if number else "-" for number in numbers]
        ends = (text(", ".join(row.aliases)), text(row.origin))
        cells.append([text(row.name), text(row.family), parameters, *shown, *ends])
    return page([table(columns, cells)])


def render_profile(view: ProfileView) -> str:
    """One row per field, with where it was published and when it was read."""
    title = f"## {text(view.name)}" + (f": {text(view.title)}" if view.title else "")
    facts = [("also called", ", ".join(view.aliases)), ("file", view.file or ""), *(("note", n) for n in view.notes)]
    cells = []
    for row in view.fields:
        value = value_text(row.value) + (f" {row.unit}" if row.unit and row.value is not None else "")
        reason = row.reason if row.value is None else None
        source = [] if row.source is None else [row.source.title, row.source.date, row.source.url]
        said = [", ".join(text(part) for part in source if part), *(text(part) for part in (reason, row.note) if part)]
        if row.fitted_from:
            said.append(text(f"chosen in sight of published runs: {', '.join(row.fitted_from)}"))
        cells.append([text(row.key), text(value), "; ".join(part for part in said if part)])
    return page([[title], [f"- {key}: {text(fact)}" for key, fact in facts if fact], table(_PROFILE, cells)])


_PROFILE = ("field", "value", "where it is from")


def headline(result: FitResult, figures: ShownFigures) -> list[str]:
    """The verdict as a heading, the likely figure against the usable memory, and the notes."""
    margin = f"{margin_words(result, figures)}, {room_words(figures)}"
    lines = [
        f"## {verdict_words(result)}: {text(subject(result))}",
        "",
        *(line for broken in result.broken_limits for line in (f"> limit: {text(broken)}", "")),
        f"**{text_of(figures.device)} of {text_of(figures.usable)} GiB per GPU**, {margin}.",
    ]
    return lines + [line for note in notes(result) for line in ("", f"> note: {text(note)}")]


def _run(result: FitResult) -> list[str]:
    words = judged_words(result).replace("×", "x")
    lines = [f"{text(words)}, checkpointing {text(strategy(result))}"]
    if result.settings:
        title = "Settings for the training script" if result.recommended.flags else "Settings that were judged"
        lines += ["", f"{title}:", ""]
        lines += [f"- {text(f'{setting.name} {setting.value}'.rstrip())}" for setting in result.settings]
        if result.settings_need_code:
            strategy_ = text(strategy(result))
            lines.append(f"- checkpointing {strategy_} is code, not a switch: `vramplan checkpoints ... --emit python`")
    if result.recommended.flags:
        flags = clean(result.recommended.flags)
        longest = max((len(run) for run in re.findall("`+", flags)), default=0)
        fence = "`" * max(3, longest + 1)
        lines += ["", "To repeat this answer:", "", f"{fence}sh", flags, fence]
    return lines


def _memory(result: FitResult, figures: ShownFigures) -> list[str]:
    cells, shared = [], is_shared(result)
    for row in memory_rows(result, figures):
        gb = [] if row.gb_hundredths is None else [text_of(row.gb_hundredths)]
        whole = [alone(row)] if shared else []
        shown = [text(row.name), *gb, text_of(row.hundredths), *whole, percent(row.bytes, result.capacity_bytes)]
        if row.kind == "total":
            shown = [f"**{cell}**" if cell else "" for cell in shown]
        cells.append([*shown, text(row.basis)])
    title, where = heading(result)
    gb_column = ["GB:"] if by_textbook(result) else []
    alone_column = ["alone:"] if shared else []
    columns = ("component", *gb_column, "GiB:", *alone_column, "% of GPU:", "basis")
    return [f"### {title}: {text(where)}", "", *table(columns, cells)]


def _ladder(result: FitResult) -> list[str]:
    if not result.alternatives:
        return []
    cells = []
    for row in result.alternatives:
        steps = row.gradient_accumulation_steps
        name = text(row.activation_checkpointing)
        cells.append(
            [
                f"**{name}**" if row.activation_checkpointing == result.recommended.activation_checkpointing else name,
                text(row.verdict),
                str(row.micro_batch_size),
                "-" if steps is None else str(steps),
                text_of(gib_against(row.device_bytes, result.usable_bytes)),
                str(row.largest_micro_batch_size),
                share_text(row.recomputed_fraction, signed=True) if row.recomputed_fraction else "0%",
            ]
        )
    columns = ("checkpointing", "verdict", "micro-batch:", "accumulation:", "GPU GiB:", "largest:", "extra compute:")
    return ["### Checkpointing compared", "", *table(columns, cells)]


def _remedies(result: FitResult, figures: ShownFigures) -> list[str]:
    if not result.remedies:
        return (
            ["### What would make it fit", "", "No single change makes it fit."]
            if result.verdict == DOES_NOT_FIT and result.remedies is not None
            else []
        )
    cells = []
    for remedy in result.remedies[:MOST_REMEDIES]:
        after = gib_against(result.peak.device_bytes - remedy.saves_bytes, result.usable_bytes)
        sizes = [text_of(after), text_of(figures.device - after)]
        rate = rate_of_all(remedy.samples_per_second, remedy.tokens_per_second)
        host = "" if remedy.host_bytes is None else host_words(remedy.host_bytes)
        cost = "; ".join(filter(None, (remedy.cost, host)))
        cells.append([text(remedy.option), text(remedy.verdict), *sizes, text(rate), text(cost)])
    columns = ("change", "verdict", "GPU GiB:", "saves GiB:", "rate:", "cost")
    return [f"### {changes_title(result)}", "", *table(columns, cells)]


def _whole_run(result: FitResult) -> list[str]:
    facts = run_facts(result.run, result.data)
    return [f"### {RUN_TITLE}", "", *table(["", ""], [[key, text(said)] for key, said in facts])] if facts else []


def _advice(result: FitResult) -> list[str]:
    if result.advice is None:
        return []
    rows = [(key, said.replace("×", "x")) for key, said in advice_rows(result.advice)]
    return [f"### {TITLE}", "", *(f"- {text(key)}: {text(said)}" for key, said in rows)]


def _assumptions(result: FitResult) -> list[str]:
    if not result.assumptions:
        return []
    cells = [[text(item.key), text(value_text(item.value)), text(item.why)] for item in result.assumptions]
    summary = f"<summary>{count(len(cells), 'assumption')}</summary>"
    return ["<details>", summary, "", *table(("key", "value", "why"), cells), "", "</details>"]


def _stats(title: str, groups: Mapping[str, ErrorStats]) -> list[str]:
    if not groups:
        return []
    cells = [
        [
            text(name),
            str(stats.count),
            *(share_text(share) for share in (stats.median, stats.p90, stats.worst)),
            share_text(stats.bias, signed=True),
        ]
        for name, stats in groups.items()
    ]
    columns = (title, "cases:", "median:", "p90:", "worst:", "bias:")
    return [f"### Error of the peak per {title}", "", *table(columns, cells)]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """`columns`: titles, with a colon at the end of those whose cells are numbers."""
    lines = [[column.removesuffix(":") for column in columns]]
    lines.append(["---:" if column.endswith(":") else "---" for column in columns])
    lines += [list(row) for row in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def page(sections: Iterable[Sequence[str]]) -> str:
    """Sections of lines, an empty line between them."""
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"
