"""What a person sees of `vramplan fit`: the verdict, the plan, what fills the GPU, and what was assumed.

It has at most `MOST_LINES` lines at every width. `vramplan.report.text` has all tables, for `--details`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.report import on_demand
from vramplan.report.headline import (
    HEADLINES,
    NARROWEST,
    WIDEST,
    degrees,
    is_unlikely,
    margin_words,
    notes,
    room_words,
    strategy,
    subject,
    value_text,
)
from vramplan.report.labelled import Item, indent_of, item_of, label_columns, labelled, laid_out, paragraph
from vramplan.report.lines import Line, Span, cells, elide, wrap
from vramplan.report.memory import ShownFigures, by_textbook, drawing, keys_of
from vramplan.report.numbers import gib_against, gib_up, text_of, whole_gib
from vramplan.report.solved import solved_words
from vramplan.report.times import time_words
from vramplan.results import DOES_NOT_FIT, FITS, MONEY, TIGHT, Component, FitResult, Remedy

MOST_LINES = 16
TIED = "\u2423"  # a space at which no line breaks
PIPE_WIDTH = 80
PARTS = 5  # components that are named; the others are summed
LEAST = 200  # a part of less than one of so many is not named
ASSUMED, REMEDIES = 4, 3  # that are named

EVERYTHING = "*"
STATES = ("weights", "master", "gradients", "optimizer")
STORED = ("activations", "temporaries", "workspace")
AT_STAKE: Mapping[str, tuple[str, ...]] = {
    "runtime": (EVERYTHING,),
    "model": (EVERYTHING,),  # of several profiles of one name
    "gpu": (EVERYTHING,),
    "weight_dtype": (*STATES, "weight_casts", "gathered"),
    "parallel.sharding": (*STATES, "gathered"),
    "parallel.shards": (*STATES, "gathered"),
    "precision": ("weights", "master", "weight_casts", *STORED),
    "optimizer": ("master", "optimizer"),
    "optimizer_state_dtype": ("optimizer",),
    "gradient_dtype": ("gradients",),
    "gradient_accumulation_steps": ("gradients",),
    "global_batch_size": ("gradients",),
    "parallel.no_sync": ("gradients",),
    "sequence_length": STORED,
    "target_length": STORED,
    "image_size": STORED,
    "attention": ("activations", "workspace"),
    "padding": ("activations",),
    "packing": ("activations",),
    "compile": STORED,
    "loss": ("temporaries",),
    "expert_imbalance": ("activations",),
    "expert_capacity_factor": ("activations",),
    "adapter.kind": (EVERYTHING, EVERYTHING),  # named first: nobody asked for an adapter
    "adapter.targets": ("gradients", "optimizer"),
    "adapter.rank": ("gradients", "optimizer"),
    "adapter.dtype": ("gradients", "optimizer"),
    "quantization": ("weights",),
    "qat": STORED,
    "qat.group_size": ("buffers",),
    "allocator": ("allocator",),
}
"""The parts of the memory that another value of a key would change. Keys that are not here change little."""

NAMES = {
    "weight_casts": "16-bit weight copies",
    "gathered": "gathered weights",
    "in_flight": "other micro-batches",
    "context": "CUDA context",
    "nccl": "NCCL",
    "libraries": "cuBLAS",
    "ema": "averaged weights",
    "reference": "reference model or teacher",
    "master": "fp32 master weights",
}
"""Parts whose name in the answer is not the word of the field."""


def render_summary(result: FitResult, *, width: int) -> list[Line]:
    """Lay out the answer in at most `width` columns (40 to 100 are used) and `MOST_LINES` lines."""
    width = max(NARROWEST, min(width, WIDEST))
    figures = ShownFigures(result)
    kept = [
        _title(result, width) + _limits(result, width),
        _solved(result, width),
        _memory(result, figures, width),
        _plan(result, width),
        _time(result, width),
        _whole_run(result, width),
        _drawn(result, figures, width),
        _repeated(result, width),
    ]
    left = MOST_LINES - sum(map(len, kept))
    said = sorted(notes_without_card(result), key=lambda text: text not in result.decisive)
    if result.verdict == TIGHT:  # these stand beside the memory
        said = [text for text in said if text not in result.decisive]
    noted = _noted(said, result, width)
    lacking = result.verdict == DOES_NOT_FIT and bool(result.remedies)
    wanted = len(_remedies(result, figures, width, MOST_LINES)) if lacking else 0
    for place in (5, 4):  # what makes a run fit, and why it does not, is worth more than what it would cost and take
        if lacking and left < max(REMEDIES, wanted) + noted + 1 and (place == 5 or result.decisive or left < wanted):
            left += len(kept[place])
            kept[place] = []
    offers = result.verdict == TIGHT and bool(result.remedies)
    if offers and left < noted + 2:  # what surely fits is worth more than to repeat the plan
        left += len(kept[-1])
        kept[-1] = []
    most = 2 if left - noted + bool(said) > (7 if lacking else 5) else 1
    assumed = _assumed(result, width, min(most, left - (2 if lacking else offers)))
    left -= len(assumed)
    host = _host(result, width, min(2, left))
    left -= len(host)
    changes = _why_not(result, figures, width, left - noted - (REMEDIES if lacking else 0))
    room = left - len(changes)
    changes += _remedies(result, figures, width, room - noted) or _remedies(result, figures, width, room)
    left -= len(changes)
    advice = _advice(result, width, left - noted)
    remarks = _notes(said, width, left - len(advice))
    title, solved, memory, plan, time, run, drawn, repeated = kept
    # at a width where even these do not fit, the last to be needed go first
    sections = [title, solved, memory, plan, time, run, drawn, changes, host, advice, remarks, assumed, repeated]
    for spare in (repeated, assumed, drawn):
        if sum(map(len, sections)) > MOST_LINES:
            sections.remove(spare)
    return [line for section in sections for line in section][:MOST_LINES]


def render_opening(result: FitResult, *, width: int) -> list[Line]:
    """The first lines of `render_summary`, which are the same whatever else is found: the verdict, memory, and plan."""
    width = max(NARROWEST, min(width, WIDEST))
    title, memory = _title(result, width) + _limits(result, width), _memory(result, ShownFigures(result), width)
    return [*title, *_solved(result, width), *memory, *_plan(result, width)][:MOST_LINES]


def _noted(said: Sequence[str], result: FitResult, width: int) -> int:
    """The lines that notes have at least: all of the decisive ones, and one that counts the others."""
    most = [len(paragraph("note", [Span(text, "note")], width)) for text in said if text in result.decisive]
    return sum(most) + (len(said) > len(most))


def notes_without_card(result: FitResult) -> list[str]:
    """The warnings that the lines above do not say, without what a profile says of other cards of the same name."""
    gpu = result.job.get("gpu")
    of_the_card = gpu.get("note") if isinstance(gpu, Mapping) else None
    of_the_code = f"checkpointing {strategy(result)} is code and not a setting of "
    said = notes(result)
    if result.settings_need_code:  # the plan says so
        said = [text for text in said if not text.startswith(of_the_code)]
    return [text for text in said if text != of_the_card]


def _title(result: FitResult, width: int) -> list[Line]:
    """`FITS  gpt2-xl on v100, amp-fp16, fp32 weights, 1024 tokens`."""
    verdict = HEADLINES.get(result.verdict, result.verdict)
    said = subject(result, max(width // 2 - 8, 12))
    kept = re.sub(r"(?<=, )(\w+) (?=\w+(,|$))", f"\\1{TIED}", said)  # a number stays beside its unit
    lines = wrap([Span(verdict, result.verdict), Span(f"  {kept}", "strong")], width, rest=2)[:2]
    return [tuple(span._replace(text=span.text.replace(TIED, " ")) for span in line) for line in lines]


def _limits(result: FitResult, width: int) -> list[Line]:
    """The deadline and the budget that are not kept, or that cannot be judged, a line each."""
    if not result.broken_limits:
        return []
    said = [] if result.run is None else on_demand.limit_words(result.run)
    said += [limit.why for limit in result.limits if limit.kept is None]
    return [line for words in said for line in paragraph("limit", [Span(words, "over")], width)]


def _solved(result: FitResult, width: int) -> list[Line]:
    """What was solved for, and what the next value needs."""
    if result.solved is None:
        return []
    return paragraph("solved", [Span(solved_words(result.solved, result.job), "strong")], width)[:3]


def _memory(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    """The likely figure of one GPU against what it offers, the range around it, and what a tight verdict means."""
    items = [
        Item((Span(text_of(figures.device), "strong"), Span(f" of {text_of(figures.usable)} GiB per GPU"))),
        item_of(margin_words(result, figures), "muted"),
        item_of(room_words(figures), "over" if figures.headroom < 0 else ""),
    ]
    lines = laid_out("memory", items, width, 3)
    if result.verdict == TIGHT:
        said = (
            "more likely than not, it runs out of memory"
            if is_unlikely(result)
            else "it may run out of memory: the range goes above the usable memory"
        )
        lines += paragraph("", [Span(said, "note")], width)
        for safer in result.decisive:
            lines += paragraph("", [Span(safer, "note")], width)
    return lines


def _plan(result: FitResult, width: int) -> list[Line]:
    """The settings to run with, in the words of the training program; or those that were judged."""
    job = result.job
    settings = [f"{setting.name} {setting.value}".rstrip() for setting in result.settings]
    between = "" if settings and settings[0].startswith("-") else ","  # options of a command line
    items = [item_of(words, "flags") for words in settings]
    if not settings:  # equations have no program
        keys = (("micro_batch_size", "batch size per GPU"), ("gradient_accumulation_steps", "gradient accumulation"))
        items = [item_of(f"{words} {job[key]}", "flags") for key, words in keys if job.get(key) is not None]
        items.append(item_of(f"activation checkpointing {elide(strategy(result), 26)}", "flags"))
    whole, accumulated = job.get("global_batch_size"), (job.get("gradient_accumulation_steps") or 1) > 1
    several = accumulated or degrees(job)["data"] > 1
    said_already = any(setting.value == str(whole) for setting in result.settings)
    tail = item_of(f"(global batch {whole})", "muted") if whole is not None and several and not said_already else None
    if result.recommended.micro_batch_size is not None:
        lines = laid_out("plan", items, width, 5, between=between, tail=tail)
    else:
        lines = []
        if result.verdict != DOES_NOT_FIT:
            said = "nothing to recommend: what was judged is above the usable memory, or may be"
            lines = paragraph("plan", [Span(said, "note")], width)
        lines += laid_out("judged", items, width, 5, between=between, tail=tail)
    added = result.recommended.accumulation_adds_bytes
    if added:
        words = f"gradient accumulation would add {text_of(gib_up(added))} GiB"
        lines += paragraph("", [Span(words, "muted")], width)[:1]
    if result.settings_need_code and result.recommended.micro_batch_size is not None:
        said = f"{elide(strategy(result), 20)} is code, not a switch: "
        lines += paragraph("", [Span(said), Span("vramplan checkpoints ... --emit python", "flags")], width)
    elif result.settings_need_code:
        lines += paragraph("", [Span(f"with checkpointing {elide(strategy(result), 40)}")], width)
    return lines


def _time(result: FitResult, width: int) -> list[Line]:
    """How long a step takes, and what it is bound by."""
    if result.time is None:
        return []
    likely, between, rate, utilisation, bound = time_words(result.time)
    items = [
        Item((Span(likely, "strong"), Span(f" ({between})", "muted"))),
        item_of(rate),
        item_of(utilisation),
        item_of(bound, "muted"),
    ]
    return laid_out("time", items, width, 2 if width >= PIPE_WIDTH else 3)


def _whole_run(result: FitResult, width: int) -> list[Line]:
    """How long the run takes, and what it costs; or why nobody can say that, where no line above does."""
    if result.run is not None:
        return laid_out("run", list(map(item_of, on_demand.run_words(result.run))), width, 5)
    if result.run_unknown is None or result.limits:
        return []
    return paragraph("run", [Span(result.run_unknown, "note")], width)


def _drawn(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    """One GPU as a bar, and what its largest parts are called."""
    indent = indent_of(width)
    label = "sum" if by_textbook(result) else "peak"
    for named in range(PARTS, 0, -1):
        groups = _groups(result, figures, named)
        keys = keys_of([part for part, _ in groups], ())
        items = [
            Item((keys[part.name, False], Span(f" {NAMES.get(part.name, part.name)} {text_of(shown)}")))
            for part, shown in groups
            if shown * LEAST >= figures.device
        ]
        legend = laid_out("", items, width, len(items), between=" ")
        if len(legend) <= (2 if width >= PIPE_WIDTH else 3):
            break
    inside = width - indent - label_columns(label, indent) - 2
    bar = drawing(result, [(part.bytes, keys[part.name, False]) for part, _ in groups], inside)
    return [*labelled(label, [bar], indent), *legend]


def _groups(result: FitResult, figures: ShownFigures, named: int) -> list[tuple[Component, int]]:
    """The largest components, the others together, and what lies between them and the GPU; with hundredths of a GiB."""
    total = figures.device
    sized = [(part, shown) for part, shown in zip(result.components, figures.components, strict=True) if part.bytes]
    largest = [pair for pair in sorted(sized, key=lambda pair: -pair[0].bytes)[:named] if pair[1] * LEAST >= total]
    groups = [pair for pair in sized if pair in largest]
    others = [pair for pair in sized if pair not in largest]
    overheads = list(zip(result.overheads, figures.overheads, strict=True))
    for name, together in (("other", others), ("overhead", overheads)):
        if together:
            summed = Component(name, sum(part.bytes for part, _ in together), "")
            groups.append((summed, sum(shown for _, shown in together)))
    return groups


def _why_not(result: FitResult, figures: ShownFigures, width: int, most: int) -> list[Line]:
    """The largest part of what does not fit."""
    if result.verdict != DOES_NOT_FIT or not result.components:
        return []
    if result.headroom_bytes >= 0 and result.host is not None:
        need = f"the memory of the host: a node needs {text_of(gib_up(result.host.node_bytes))} GiB"
        if result.job["host_memory"] is None:  # then nothing is compared with it
            need = "the host: the engine has too few buffers there"
        return paragraph("why not", [Span(need)], width)[: max(most, 0)]
    part, shown = max(zip(result.components, figures.components, strict=True), key=lambda pair: pair[0].bytes)
    name = NAMES.get(part.name, part.name)
    words = f"the largest part is {name}, {text_of(shown)} of {text_of(figures.device)} GiB"
    low = "" if by_textbook(result) else f"; even the low end is {text_of(figures.low - figures.usable)} GiB too much"
    lines = paragraph("why not", [Span(words + low)], width)
    if len(lines) > most:  # what is to be done is worth more than how far off it is
        lines = paragraph("why not", [Span(words)], width)
    return lines if len(lines) <= most else []


def _shown_remedies(remedies: Sequence[Remedy]) -> Sequence[Remedy]:
    """The first ones; where all of them need another machine, the first that keeps it is the last of them."""
    first = remedies[:REMEDIES]
    kept = next((one for one in remedies if one.costs != MONEY), None)
    if kept is None or any(one.costs != MONEY for one in first):
        return first
    return (*first[: REMEDIES - 1], kept)


def _remedies(result: FitResult, figures: ShownFigures, width: int, most: int) -> list[Line]:
    """The first changes, each on as few lines as it takes, with the GiB of a GPU afterwards."""
    label = "to save" if result.verdict == FITS else "to fit"
    if not result.remedies:
        looked = result.remedies is not None and result.verdict == DOES_NOT_FIT
        if not looked or result.headroom_bytes >= 0:  # the host is too small, not the device
            return []
        return paragraph(label, [Span("no single change makes it fit")], width)[: max(most, 0)]
    rows: list[tuple[str, str]] = []
    indent = indent_of(width)
    room = width - indent
    whole = [one for one in result.remedies if max(map(cells, one.option.split()), default=0) <= room]  # no word is cut
    for remedy in _shown_remedies(whole):
        needed = gib_against(remedy.device_bytes, remedy.usable_bytes)
        verdict = "" if remedy.verdict == result.verdict == FITS else f" {remedy.verdict}"
        host = "" if remedy.host_bytes is None else f", host {whole_gib(remedy.host_bytes)} GiB"
        rows.append((remedy.option, f"{text_of(needed)} GiB{verdict}{host}"))
    lines: list[Line] = []
    wide = max((cells(flags) for flags, after in rows if cells(flags) + 2 + cells(after) <= room), default=0)
    for flags, after in rows:
        option = Span(flags, "flags")
        if cells(flags) + 2 + cells(after) <= room:
            gap = wide - cells(flags) + 2 if wide + 2 + cells(after) <= room else 2
            items = [Item((option, Span(" " * gap + after)))]
        else:
            items = [Item((option,)), Item((Span(after),))]
        row = laid_out(label if not lines else "", items, width, MOST_LINES, between="")  # none is cut
        if len(lines) + len(row) <= most:
            lines += row
    return lines


def _host(result: FitResult, width: int, most: int) -> list[Line]:
    """What a node holds in the memory of its host."""
    if result.host is None or result.job.get("host_memory") is None:  # without one a note says what it needs
        return []
    need = f"{text_of(gib_up(result.host.node_bytes))} GiB of host memory per node"
    return paragraph("host", [Span(need)], width)[: max(most, 0)]


def _advice(result: FitResult, width: int, most: int) -> list[Line]:
    """The learning rate for the batch."""
    advice = result.advice
    if advice is None or most < 1:
        return []
    rate = f"{advice.learning_rate:.4g} for batch {advice.effective_batch_size}"
    items = [
        item_of(f"learning rate {rate} ({advice.rule} rule)"),
        item_of(f"warm-up {advice.warm_up_least_steps} to {advice.warm_up_most_steps} optimizer steps"),
    ]
    return laid_out("advice", items, width, min(most, 2))


def _notes(said: Sequence[str], width: int, most: int) -> list[Line]:
    """The warnings that there is room for, and how many there are beside them."""
    lines: list[Line] = []
    missing = 0
    for number, text in enumerate(said):
        note = paragraph("note", [Span(text, "note")], width)
        reserved = 1 if number + 1 < len(said) or missing else 0
        if len(lines) + len(note) + reserved <= most:
            lines += note
        else:
            missing += 1
    if missing and len(lines) < most:
        notes = "note" if missing == 1 else "notes"
        more = f"{missing} more {notes} with --details" if lines else f"--details shows {missing} {notes} more"
        lines += paragraph("" if lines else "note", [Span(more, "note")], width)[: most - len(lines)]
    return lines


def _assumed(result: FitResult, width: int, most: int) -> list[Line]:
    """The assumptions with most memory at stake; what was chosen is in the plan."""
    sizes = {part.name: part.unsharded_bytes or part.bytes for part in (*result.components, *result.overheads)}
    sizes[EVERYTHING] = sum(sizes.values())
    chosen = ("micro_batch_size", "activation_checkpointing")
    open_ones = [one for one in result.assumptions if one.key not in chosen]
    ranked = sorted(open_ones, key=lambda one: -sum(sizes.get(name, 0) for name in AT_STAKE.get(one.key, ())))
    items = [item_of(_said(one.key, one.value)) for one in ranked[:ASSUMED]]
    count = len(result.assumptions)
    tail = item_of(f"(--details for all {count})" if count > len(items) else "(--details: why)", "muted")
    return laid_out("assumed", items, width, most, tail=tail)


def _said(key: str, value: Any) -> str:
    """`sequence length 2048`, `no packing`."""
    words = key.removeprefix("parallel.").replace(".", " ").replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}".removeprefix("no no ")
    return f"{words} {elide(value_text(value), 30)}"


def _repeated(result: FitResult, width: int) -> list[Line]:
    """What pins the choice: the same command with these options has the same answer."""
    flags = result.recommended.flags
    made = {one.key for one in result.assumptions} & {"micro_batch_size", "activation_checkpointing"}
    if not flags or not made:
        return []
    options = [item_of(f"--{words}", "flags") for words in f" {flags}".split(" --")[1:]]  # each with its value
    return laid_out("repeat", options, width, 2, between="")
