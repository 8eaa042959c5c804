"""What a person sees of `vramplan fit`: the verdict in three lines, then every byte and every choice behind it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from vramplan.options.flags import flags_of, quoted
from vramplan.report.lines import Cell, Column, Line, Span, elide, print_rich, stacked, table, to_plain, wrap
from vramplan.report.memory import Figures, by_textbook, memory
from vramplan.report.numbers import gb_near, gib_against, gib_up, text_of
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT, FitResult

__all__ = ["print_rich", "render_fit", "to_plain"]

WIDEST = 100  # a longer line is harder to read, not easier
NARROWEST = 40
HEADLINES = {FITS: "FITS", TIGHT: "TIGHT", DOES_NOT_FIT: "DOES NOT FIT"}
_CALM = {FITS: "passed", TIGHT: "note", DOES_NOT_FIT: "over"}  # verdicts beside the one that counts


def render_fit(result: FitResult, *, width: int) -> list[Line]:
    """Lay out the answer in at most `width` columns (40 to 100 are used)."""
    width = max(NARROWEST, min(width, WIDEST))
    figures = Figures(result)
    sections = [
        headline(result, figures, width),
        _run(result, width),
        memory(result, figures, width),
        _stages(result, width),
        _ladder(result, width),
        _why_not(result, figures, width),
        _remedies(result, figures, width),
        _advice(result, width),
        _assumptions(result, width),
    ]
    return stacked(sections)


def name_of(value: Any) -> str:
    """The short name of a model or GPU in a resolved job: the profile's name, or that of a mapping."""
    if isinstance(value, Mapping):
        return str(value.get("name") or "unnamed")
    return str(value)


def run_words(job: Mapping[str, Any]) -> str:
    """`micro-batch 2 x 256 steps = global batch 512`, with the ranks where there are several."""
    micro, steps, whole = (
        job.get(key) for key in ("micro_batch_size", "gradient_accumulation_steps", "global_batch_size")
    )
    words = f"micro-batch {micro}"
    if steps is not None:
        words += f" × {steps} {'step' if steps == 1 else 'steps'}"
    ranks = (job.get("parallel") or {}).get("data") or 1
    if ranks > 1:
        words += f" × {ranks} ranks"
    return words + (f" = global batch {whole}" if whole is not None else "")


def degrees(job: Mapping[str, Any]) -> dict[str, int]:
    """How many devices each kind of parallelism multiplies by; experts are shared by devices that are counted here."""
    parallel = job.get("parallel") or {}
    return {key: parallel.get(key) or 1 for key in ("data", "tensor", "pipeline", "context")}


def device_words(job: Mapping[str, Any]) -> str:
    """`64: data 4 x tensor 8 x pipeline 2, sharding fsdp`; nothing for one device."""
    parallel = job.get("parallel") or {}
    sizes = degrees(job)
    whole = prod(sizes.values())
    if whole == 1:
        return ""
    parts = [f"{key} {size}" for key, size in sizes.items() if size > 1]
    words = f"{whole}: " + " × ".join(parts)
    if (parallel.get("expert") or 1) > 1:
        words += f", expert {parallel['expert']}"
    if parallel.get("sequence_parallel"):
        words += ", sequence parallel"
    sharding = parallel.get("sharding")
    if sharding in {None, "none"}:
        return words
    words += f", sharding {sharding}"
    shards = parallel.get("shards")
    grouped = sharding == "fsdp-grad-op" and shards is not None and shards < sizes["data"] * sizes["context"]
    return words + (f" over {shards}" if grouped else "")


def headline(result: FitResult, figures: Figures, width: int) -> list[Line]:
    """The verdict, the device figure against the usable memory, what to run, and the notes."""
    title = [Span(verdict_words(result), result.verdict), Span("  " + subject(result.job), "strong")]
    lines = wrap(title, width, rest=2)

    spans = [Span(text_of(figures.device), "strong"), Span(f" of {text_of(figures.usable)} GiB usable, ")]
    if figures.headroom < 0:
        spans.append(Span(f"{text_of(-figures.headroom)} GiB too much", "over"))
    else:
        spans.append(Span(f"{text_of(figures.headroom)} GiB headroom"))
    spans.append(Span(f" ({margin_words(result, figures)})", "muted"))
    lines += wrap(spans, width, first=2, rest=2)

    lines += wrap(
        [Span(f"{judged_words(result)}, checkpointing {elide(strategy(result), 26)}")], width, first=2, rest=2
    )
    for warning in notes(result):
        lines += wrap([Span("note: ", "note"), Span(warning)], width, first=2, rest=8)
    return lines


def margin_words(result: FitResult, figures: Figures) -> str:
    """The band; closed forms have none, and are compared with printed GB."""
    if by_textbook(result):
        return f"{text_of(gb_near(result.peak.device_bytes))} of {text_of(gb_near(result.usable_bytes))} GB"
    return f"band {text_of(figures.low)} to {text_of(figures.high)}"


def verdict_words(result: FitResult) -> str:
    """`TIGHT, more likely not`."""
    return HEADLINES.get(result.verdict, result.verdict) + (", more likely not" if _unlikely(result) else "")


def _unlikely(result: FitResult) -> bool:
    return result.verdict == TIGHT and result.headroom_bytes < 0


def subject(job: Mapping[str, Any]) -> str:
    """`gpt2-xl on v100, amp-fp16, 1024 tokens`; all devices are counted, as in `on 16 x h100`."""
    devices = prod(degrees(job).values())
    count = f"{devices} × " if devices > 1 else ""
    what = f"{name_of(job.get('model'))} on {count}{name_of(job.get('gpu'))}, {job.get('precision')}"
    return ", ".join([what, *sample_words(job)])


def sample_words(job: Mapping[str, Any]) -> list[str]:
    """What a sample is made of: `1024 tokens`, `224 pixels`, both, or nothing that the job says."""
    tokens = [tokens_of(job)] if job.get("sequence_length") is not None else []
    return tokens + ([f"{job['image_size']} pixels"] if job.get("image_size") is not None else [])


def tokens_of(job: Mapping[str, Any]) -> str:
    """`1024 tokens`; `1024 tokens, target 128` where a decoder has another length."""
    target = job.get("target_length")
    return f"{job['sequence_length']} tokens" + (f", target {target}" if target is not None else "")


def judged_words(result: FitResult) -> str:
    """The batch to run with, or the one that was judged when none fits."""
    recommended = result.recommended
    if recommended.micro_batch_size is None:
        return f"judged at {run_words(result.job)}"
    batch = {
        "micro_batch_size": recommended.micro_batch_size,
        "gradient_accumulation_steps": recommended.gradient_accumulation_steps,
        "global_batch_size": recommended.global_batch_size,
    }
    return run_words({**result.job, **batch})


def strategy(result: FitResult) -> str:
    """The checkpointing to run with, or the one that was judged when none fits."""
    return str(result.recommended.activation_checkpointing or result.job.get("activation_checkpointing"))


def notes(result: FitResult) -> list[str]:
    """The warnings that the headline does not say."""
    return [text for text in result.warnings if not (_unlikely(result) and "more likely not" in text)]


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
    if recommended.flags:
        lines.append((Span("Run with", "heading"),))
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
        ("largest", f"micro-batch {largest} by the device figure" if largest else "no micro-batch fits"),
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
        from vramplan.report.host import host_facts  # few jobs offload

        facts[-1:-1] = host_facts(result.host)
    if result.allocator is not None:
        from vramplan.report.allocator import allocator_facts  # few jobs simulate it

        facts[-1:-1] = allocator_facts(result.allocator)
    if by_textbook(result):  # the equations count checkpoints without placing them, and know no kernels
        facts = [("parameters", parameters), ("optimizer", str(job.get("optimizer")))]
        if job.get("activation_model") is not None:
            facts += [("equation", str(job["activation_model"]))]
            facts += [("largest", f"micro-batch {largest}" if largest else "no micro-batch fits")]
    for key, value in facts:
        lines += wrap([Span(f"{key.ljust(12)} ", "muted"), Span(value)], width, first=2, rest=15)
    return lines


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
        Column("device GiB", right=True),
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
        Column("steps", right=True, drop=3),
        Column("GiB", right=True),
        Column("largest", right=True, drop=4),
        Column("compute", right=True, drop=1),
    ]
    title = [Span("Ladder", "heading"), Span("  each at its own best micro-batch; device GiB, extra compute", "muted")]
    return wrap(title, width, rest=2) + table(columns, rows, width)


def _why_not(result: FitResult, figures: Figures, width: int) -> list[Line]:
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


def _remedies(result: FitResult, figures: Figures, width: int) -> list[Line]:
    if not result.remedies:
        if result.verdict != DOES_NOT_FIT or result.headroom_bytes >= 0:  # the host is too small, not the device
            return []
        return [(Span("Remedies", "heading"),), *wrap([Span("no single change makes it fit")], width, first=2)]
    title = [Span("Remedies", "heading"), Span("  one of these is enough; device GiB with it", "muted")]
    lines = wrap(title, width, rest=2)
    rows: list[list[Cell]] = []
    for remedy in result.remedies:
        after = gib_against(result.peak.device_bytes - remedy.saves_bytes, result.usable_bytes)
        rows.append(
            [
                Span(text_of(after)),
                Span(remedy.verdict, _CALM.get(remedy.verdict, "")),
                Span(text_of(figures.device - after)),
                Span(flags_of(remedy.change), "flags"),
            ]
        )
        if remedy.cost:
            rows.append(["", "", "", Span(remedy.cost, "muted")])
    columns = [Column("GiB", right=True), Column("verdict"), Column("saves", right=True), Column("change", fluid=True)]
    return lines + table(columns, rows, width)


def _advice(result: FitResult, width: int) -> list[Line]:
    if result.advice is None:
        return []
    from vramplan.report.advice import advice_lines  # few answers have one

    return advice_lines(result.advice, width)


def _assumptions(result: FitResult, width: int) -> list[Line]:
    if not result.assumptions:
        return []
    lines: list[Line] = [(Span("Assumptions", "heading"),)]
    for item in result.assumptions:
        value = value_text(item.value)
        lines += wrap([Span(f"{item.key} = {value}"), Span(f" ({item.why})", "muted")], width, first=2, rest=4)
    return lines


def value_text(value: Any) -> str:
    """A value as the job format writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(value_text(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {value_text(item)}" for key, item in value.items()) + "}"
    return str(value)
