"""What a person sees of `vramplan fit`: the verdict in three lines, then every byte and every choice behind it."""

from __future__ import annotations

from vramplan.options.flags import quoted
from vramplan.report.advice import advice_lines
from vramplan.report.allocator import allocator_facts
from vramplan.report.headline import (
    NARROWEST,
    WIDEST,
    changes_title,
    device_words,
    headline,
    strategy,
    value_text,
)
from vramplan.report.host import host_facts
from vramplan.report.lines import Cell, Column, Line, Span, elide, print_rich, stacked, table, to_plain, wrap
from vramplan.report.memory import MOST_REMEDIES, ShownFigures, by_textbook, host_words, memory
from vramplan.report.numbers import gib_against, gib_up, text_of
from vramplan.report.solved import solved_words
from vramplan.report.times import rate_of_all, time_facts
from vramplan.report.whole_run import TITLE as RUN_TITLE
from vramplan.report.whole_run import run_facts
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, FitResult

__all__ = ["print_rich", "render_fit", "to_plain"]

_CALM = {FITS: "passed", TIGHT: "note", DOES_NOT_FIT: "over"}  # verdicts beside the one that counts


def render_fit(result: FitResult, *, width: int) -> list[Line]:
    """Lay out the answer in at most `width` columns (40 to 100 are used)."""
    width = max(NARROWEST, min(width, WIDEST))
    figures = ShownFigures(result)
    sections = [
        headline(result, figures, width),
        _solved(result, width),
        _run(result, width),
        _time(result, width),
        memory(result, figures, width),
        _stages(result, width),
        _ladder(result, width),
        _why_not(result, figures, width),
        _remedies(result, figures, width),
        _whole_run(result, width),
        _advice(result, width),
        _assumptions(result, width),
    ]
    return stacked(sections)


def _solved(result: FitResult, width: int) -> list[Line]:
    """What was solved for, and what the next value needs."""
    return (
        [] if result.solved is None else wrap([Span(solved_words(result.solved, result.job))], width, first=2, rest=2)
    )


def _segments(result: FitResult) -> str:
    """`blocks 0-6, 7-13, 14-20, ..., 42-47`."""
    if len(result.checkpoints) > 1 and all(
        (first, last) == (place, place) for place, (first, last) in enumerate(result.checkpoints)
    ):
        return f"one for each of the blocks 0-{len(result.checkpoints) - 1}"
    spelled = [str(first) if first == last else f"{first}-{last}" for first, last in result.checkpoints]
    if len(spelled) > 5:
        spelled = [*spelled[:3], "...", spelled[-1]]
    return "blocks " + ", ".join(spelled)


def _selected(result: FitResult) -> str:
    """What is selective about the checkpoints."""
    judged = strategy(result)
    if judged == "selective":
        return " of whole blocks, one of the attention core in each block"
    if judged == "selective-op":
        products = "every second matrix product" if result.job.get("every_second_matmul") else "matrix products"
        return f"; results of {products} and of fused attention are kept"
    return ""


def _run(result: FitResult, width: int) -> list[Line]:
    job, recommended = result.job, result.recommended
    lines: list[Line] = []
    if result.settings:
        title = "Settings for the training script" if recommended.flags else "Settings that were judged"
        lines.append((Span(title, "heading"),))
        for setting in result.settings:
            lines += wrap([Span(f"{setting.name} {setting.value}".rstrip(), "flags")], width, first=2, rest=4)
        if result.settings_need_code:
            said = f"checkpointing {elide(strategy(result), 26)} is code, not a switch: "
            command = Span("vramplan checkpoints ... --emit python", "flags")
            lines += wrap([Span(said), command], width, first=2, rest=4)
        lines.append(())
    if recommended.flags:
        lines.append((Span("To repeat this answer", "heading"),))
        lines += [*paste(recommended.flags, width), ()]
    lines.append((Span("Setup", "heading"),))
    parameters = f"{result.total_parameters:,}"
    if result.trainable_parameters != result.total_parameters:
        parameters += f", {result.trainable_parameters:,} trainable"
    if result.active_parameters is not None:
        parameters += f", {result.active_parameters:,} active for each token"
    count, largest = len(result.checkpoints), recommended.largest_micro_batch_size
    segments = f"{count} {'segment' if count == 1 else 'segments'}, {_segments(result)}" if count else "none"
    in_backward = ", stepped in backward" if job.get("optimizer_in_backward") else ""
    facts = [
        ("parameters", parameters),
        ("checkpoints", segments + _selected(result)),
        ("attention", str(job.get("attention"))),
        ("optimizer", f"{job.get('optimizer')}, {job.get('optimizer_implementation')}{in_backward}"),
        (
            "largest",
            f"micro-batch {largest} by the estimate, without a safety margin" if largest else "no micro-batch fits",
        ),
    ]
    if recommended.accumulation_adds_bytes:
        added = text_of(gib_up(recommended.accumulation_adds_bytes))
        facts.insert(-1, ("accumulation", f"would add {added} GiB of gradients, which stay between micro-batches"))
    devices = device_words(job)
    if devices:
        facts.insert(1, ("devices", devices))
    if job.get("loss") not in (None, "standard"):
        facts.insert(3 + bool(devices), ("loss", str(job["loss"])))
    if job.get("attention") is None:
        facts = [fact for fact in facts if fact[0] != "attention"]
    if result.host is not None:
        facts[-1:-1] = host_facts(result.host)
    if result.allocator is not None:
        facts[-1:-1] = allocator_facts(result.allocator)
    if by_textbook(result):  # the equations count checkpoints without placing them, and know no kernels
        facts = [("parameters", parameters), ("optimizer", str(job.get("optimizer")))]
        if job.get("activation_model") is not None:
            facts += [("equation", str(job["activation_model"]))]
            facts += [("largest", f"micro-batch {largest}" if largest else "no micro-batch fits")]
    return lines + _facts(facts, width)


def _facts(facts: list[tuple[str, str]], width: int) -> list[Line]:
    lines: list[Line] = []
    for key, value in facts:
        lines += wrap([Span(f"{key.ljust(12)} ", "muted"), Span(value)], width, first=2, rest=15)
    return lines


def _time(result: FitResult, width: int) -> list[Line]:
    """How long a step takes, its rates and utilisation, and where the time goes."""
    if result.time is None:
        return []
    return [(Span("Time of a step", "heading"),), *_facts(time_facts(result.time), width)]


def paste(flags: str, width: int) -> list[Line]:
    """Options on lines of their own that a shell reads back as the same words: broken after a backslash."""
    lines: list[Line] = []
    current, empty = "  ", True
    for group in _groups(flags):
        text = " ".join(quoted(word) for word in group)
        if not empty and len(current) + 1 + len(text) > width - 2:
            lines.append((Span(current + " \\", "flags"),))
            current, empty = "  ", True
        current += text if empty else " " + text
        empty = False
        if len(current) > width - 2:  # no line holds this option: a backslash also continues within a word
            current = "  " + " ".join(group[:-1])
            room = width - len(current) - 4
            if room < 8:
                lines.append((Span(current + " \\", "flags"),))
                current, room = "", width - 3
            elif len(group) > 1:
                current += " "
                room -= 1
            word = group[-1]
            while len(word) > room - 2:
                piece, word = word[:room], word[room:]
                lines.append((Span(f"{current}{quoted(piece)}\\", "flags"),))
                current, room = "", width - 3
            current += quoted(word)
    lines.append((Span(current, "flags"),))
    return lines


def _groups(flags: str) -> list[list[str]]:
    """Options with their values: `--micro-batch 2` stays on one line."""
    words = flags.split()
    if "'" in flags or '"' in flags or "\\" in flags:
        import shlex  # quotes are rare

        words = shlex.split(flags)
    groups: list[list[str]] = []
    for word in words:
        if groups and not word.startswith("--"):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _stages(result: FitResult, width: int) -> list[Line]:
    """Every stage of a pipeline, where that is asked for."""
    if not result.lists_stages or not result.stages:
        return []
    fullest = max(row.device_bytes for row in result.stages)
    rows: list[list[Cell]] = []
    for row in result.stages:
        mine = row.device_bytes == fullest
        style = "strong" if mine else ""
        ends = " and ".join(word for word, has in (("embeddings", row.embedding), ("head", row.head)) if has)
        rows.append(
            [
                Span(">" if mine else "", style),
                Span(str(row.number), style),
                Span(str(row.blocks), style),
                Span(ends or "-", style),
                Span(str(row.micro_batches_in_flight), style),
                Span(text_of(gib_up(row.allocated_bytes)), style),
                Span(text_of(gib_against(row.device_bytes, result.usable_bytes)), style),
            ]
        )
    columns = [
        Column(""),
        Column("stage", right=True),
        Column("blocks", right=True),
        Column("beside", drop=1),
        Column("in flight", right=True, drop=2),
        Column("allocated", right=True),
        Column("GPU GiB", right=True),
    ]
    title = [Span("Stages", "heading"), Span("  each at its own worst moment; GiB", "muted")]
    return wrap(title, width, rest=2) + table(columns, rows, width)


def _ladder(result: FitResult, width: int) -> list[Line]:
    if not result.alternatives:
        return []
    chosen = result.recommended.activation_checkpointing
    rows: list[list[Cell]] = []
    for row in result.alternatives:
        mine = row.activation_checkpointing == chosen
        style = "strong" if mine else ""
        steps = "-" if row.gradient_accumulation_steps is None else str(row.gradient_accumulation_steps)
        rows.append(
            [
                Span(">" if mine else "", style),
                Span(row.activation_checkpointing, style),
                Span(row.verdict, row.verdict if mine else _CALM.get(row.verdict, "")),
                Span(str(row.micro_batch_size), style),
                Span(steps, style),
                Span(text_of(gib_against(row.device_bytes, result.usable_bytes)), style),
                Span(str(row.largest_micro_batch_size), style),
                Span(f"+{100 * row.recomputed_fraction:.1f}%" if row.recomputed_fraction else "0%", style),
            ]
        )
    columns = [
        Column(""),
        Column("checkpointing", most=16),
        Column("verdict"),
        Column("micro-batch", right=True, drop=2),
        Column("accum.", right=True, drop=3),
        Column("GiB", right=True),
        Column("largest", right=True, drop=4),
        Column("compute", right=True, drop=1),
    ]
    title = [
        Span("Checkpointing compared", "heading"),
        Span("  each at its own best micro-batch; GiB per GPU, extra compute", "muted"),
    ]
    return wrap(title, width, rest=2) + table(columns, rows, width)


def _why_not(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    if result.verdict != DOES_NOT_FIT or not result.components:
        return []
    if result.headroom_bytes >= 0 and result.host is not None:
        need = f"whose node needs {text_of(gib_up(result.host.node_bytes))} GiB"
        if result.job["host_memory"] is None:  # then nothing is compared with it
            need = "where the engine has too few buffers"
        spans = [Span("decided by "), Span("the host", "strong"), Span(f", {need}")]
        return [(Span("Why not", "heading"),), *wrap(spans, width, first=2, rest=2)]
    part, hundredths = max(zip(result.components, figures.components, strict=True), key=lambda pair: pair[0].bytes)
    spans = [
        Span("decided by "),
        Span(part.name, "strong"),
        Span(f", {text_of(hundredths)} of the {text_of(figures.device)} GiB needed; "),
        Span(f"{text_of(-figures.headroom)} GiB too much", "over"),
    ]
    if not by_textbook(result):
        spans.append(Span(f" ({text_of(figures.low - figures.usable)} at the low end)"))
    return [(Span("Why not", "heading"),), *wrap(spans, width, first=2, rest=2)]


def _remedies(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    if not result.remedies:
        looked = result.remedies is not None and result.verdict == DOES_NOT_FIT
        if not looked or result.headroom_bytes >= 0:  # the host is too small, not the device
            return []
        return [
            (Span("What would make it fit", "heading"),),
            *wrap([Span("no single change makes it fit")], width, first=2),
        ]
    title = [Span(changes_title(result), "heading"), Span("  each alone; GiB per GPU with it", "muted")]
    lines = wrap(title, width, rest=2)
    rows: list[list[Cell]] = []
    for remedy in result.remedies[:MOST_REMEDIES]:
        after = gib_against(result.peak.device_bytes - remedy.saves_bytes, result.usable_bytes)
        rows.append(
            [
                Span(text_of(after)),
                Span(remedy.verdict, _CALM.get(remedy.verdict, "")),
                Span(text_of(figures.device - after)),
                Span(remedy.option, "flags"),
            ]
        )
        rate = rate_of_all(remedy.samples_per_second, remedy.tokens_per_second)
        host = "" if remedy.host_bytes is None else host_words(remedy.host_bytes)
        if remedy.cost or rate or host:
            rows.append(["", "", "", Span("; ".join(filter(None, (remedy.cost, host, rate))), "muted")])
    columns = [Column("GiB", right=True), Column("verdict"), Column("saves", right=True), Column("change", fluid=True)]
    return lines + table(columns, rows, width)


def _whole_run(result: FitResult, width: int) -> list[Line]:
    """The length and the cost of the run; what the input pipeline delivers also where no length is asked."""
    facts = run_facts(result.run, result.data)
    if not facts:
        return []
    lines: list[Line] = [(Span(RUN_TITLE, "heading"),)]
    for key, value in facts:
        lines += wrap([Span(f"{key.ljust(12)} ", "muted"), Span(value)], width, first=2, rest=15)
    return lines


def _advice(result: FitResult, width: int) -> list[Line]:
    if result.advice is None:
        return []

    return advice_lines(result.advice, width)


def _assumptions(result: FitResult, width: int) -> list[Line]:
    if not result.assumptions:
        return []
    lines: list[Line] = [(Span("Assumptions", "heading"),)]
    for item in result.assumptions:
        value = value_text(item.value)
        lines += wrap([Span(f"{item.key} = {value}"), Span(f" ({item.why})", "muted")], width, first=2, rest=4)
    return lines
