"""Memory at the peak, drawn: a bar against the capacity, and the way from the components to the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vramplan.report.lines import BLOCK, STYLES, Cell, Column, Line, Span, table, wrap
from vramplan.report.numbers import (
    apportion,
    gb_near,
    gib_against,
    gib_down,
    gib_near,
    gib_up,
    percent,
    text_of,
    whole_gib,
)
from vramplan.results import TEXTBOOK_PHASE, Component, FitResult
from vramplan.tuples import NamedTuple

_LETTERS = {
    "weights": "W",
    "master": "M",
    "optimizer": "O",
    "ema": "E",
    "reference": "R",
    "gradients": "G",
    "activations": "A",
    "weight_casts": "C",
    "gathered": "P",
    "in_flight": "F",
    "communication": "N",
    "temporaries": "T",
    "workspace": "K",
    "buffers": "B",
    "inputs": "I",
    "other": "X",
    "overhead": "V",
}


def host_words(size: int) -> str:
    """`151 GiB on the host`, of a node."""
    return f"{whole_gib(size)} GiB on the host"


MOST_REMEDIES = 8  # that people are shown; the document has all
FREE = "░"


class ShownFigures:
    """The figures in hundredths of a GiB, rounded against ourselves, so that every shown sum adds up."""

    def __init__(self, result: FitResult) -> None:
        peak, usable = result.peak, result.usable_bytes
        self.usable = gib_down(usable)
        self.capacity = max(gib_down(result.capacity_bytes), self.usable)
        self.device = gib_against(peak.device_bytes, usable)
        self.low = gib_against(peak.low_bytes, usable)
        self.high = gib_against(peak.high_bytes, usable)
        self.reserved = min(gib_up(peak.reserved_bytes), self.device)
        self.allocated = min(gib_up(peak.allocated_bytes), self.reserved)
        self.headroom = self.usable - self.device
        self.components = apportion([part.bytes for part in result.components], self.allocated)
        steps, bytes_so_far, shown = [], peak.allocated_bytes, self.allocated
        for part in result.overheads:
            bytes_so_far += part.bytes
            level = self.reserved if bytes_so_far == peak.reserved_bytes else gib_up(bytes_so_far)
            level = self.device if bytes_so_far >= peak.device_bytes else min(level, self.device)
            steps.append(level - shown)
            shown = level
        self.overheads = steps


def by_textbook(result: FitResult) -> bool:
    """Whether the figures are sums of closed forms: no device shows them, and texts print them in GB."""
    return result.peak.phase == TEXTBOOK_PHASE


class MemoryRow(NamedTuple):
    """One step of the way from the components to the capacity."""

    kind: str  # component | overhead | total | free | reserve
    name: str
    hundredths: int
    bytes: int
    basis: str = ""
    unsharded_bytes: int | None = None  # on one device alone, where several share the model
    gb_hundredths: int | None = None  # only where the textbook is compared with printed figures


def memory_rows(result: FitResult, figures: ShownFigures) -> list[MemoryRow]:
    """Every part that is not empty, and the sums between them."""
    if by_textbook(result):
        return _textbook_rows(result, figures)
    peak = result.peak
    rows = [
        MemoryRow("component", part.name, hundredths, part.bytes, part.basis, part.unsharded_bytes)
        for part, hundredths in zip(result.components, figures.components, strict=True)
        if part.bytes
    ]
    rows.append(MemoryRow("total", "allocated", figures.allocated, peak.allocated_bytes, result.allocated_by))
    so_far = peak.allocated_bytes
    for part, hundredths in zip(result.overheads, figures.overheads, strict=True):
        if not part.bytes:
            continue
        rows.append(MemoryRow("overhead", part.name, hundredths, part.bytes, part.basis))
        so_far += part.bytes
        if so_far == peak.reserved_bytes and so_far != peak.device_bytes:
            basis = "torch.cuda.max_memory_reserved()"
            rows.append(MemoryRow("total", "reserved", figures.reserved, peak.reserved_bytes, basis))
    rows.append(MemoryRow("total", "device", figures.device, peak.device_bytes, "what nvidia-smi shows"))
    rows.append(MemoryRow("free", "free", figures.headroom, result.headroom_bytes))
    if figures.capacity > figures.usable:
        rows.append(MemoryRow("total", "usable", figures.usable, result.usable_bytes))
        rows += _not_ours(result, figures)
        rows.append(MemoryRow("total", "capacity", figures.capacity, result.capacity_bytes))
    else:
        rows.append(MemoryRow("total", "usable", figures.usable, result.usable_bytes, "all that the GPU offers"))
    return rows


def _not_ours(result: FitResult, figures: ShownFigures) -> list[MemoryRow]:
    """What lies between the usable memory and the capacity: held back, and what others have of the card."""
    kept, shown = result.capacity_bytes - result.usable_bytes, figures.capacity - figures.usable
    free = result.job.get("gpu_free")
    if free is None:
        return [MemoryRow("reserve", "reserve", shown, kept, "held back for others")]
    others = result.capacity_bytes - int(free.removesuffix(" B"))  # as a resolved job has it
    used = shown if others == kept else min(gib_up(others), shown)
    rows = (
        [MemoryRow("reserve", "reserve", shown - used, kept - others, "held back for others")] if kept > others else []
    )
    return [*rows, MemoryRow("reserve", "in use", used, others, "not free on the GPU before the run")]


def _textbook_rows(result: FitResult, figures: ShownFigures) -> list[MemoryRow]:
    """The same for closed forms: one sum, and nothing that a tool would show."""
    total, usable = gb_near(result.peak.allocated_bytes), gb_near(result.usable_bytes)
    rows = [
        # GB are there to be held against a printed table, so each is rounded by itself, as it is there
        MemoryRow(
            "component", part.name, shown, part.bytes, part.basis.removeprefix("textbook: "), None, gb_near(part.bytes)
        )
        for part, shown in zip(result.components, figures.components, strict=True)
    ]
    basis = "all that the textbook counts"
    rows.append(MemoryRow("total", "total", figures.device, result.peak.device_bytes, basis, None, total))
    rows.append(MemoryRow("free", "free", figures.headroom, result.headroom_bytes, "", None, usable - total))
    rows.append(
        MemoryRow("total", "capacity", figures.usable, result.usable_bytes, "all that the GPU has", None, usable)
    )
    return rows


def heading(result: FitResult) -> tuple[str, str]:
    """The title over the memory, and where in the step it is."""
    if by_textbook(result):
        return "Memory by the textbook", result.peak.operator
    return "Memory at the peak", f"{result.peak.phase}, {result.peak.operator}"


def memory(result: FitResult, figures: ShownFigures, width: int) -> list[Line]:
    """The bar, and under it every part in GiB and in percent of the GPU."""
    title, where = heading(result)
    lines = wrap([Span(title, "heading"), Span(f"  {where}", "muted")], width, rest=2)
    letters = keys_of(result.components, result.overheads)
    lines += _bar(result, figures, letters, width)
    lines.append(())

    marks = {
        "total": (Span("=", "muted"), "strong"),
        "reserve": (Span("-", "muted"), ""),
        "free": (Span("!", "over"), "over") if figures.headroom < 0 else (Span(FREE, "free", "."), ""),
    }
    rows: list[list[Cell]] = []
    shared = is_shared(result)
    for row in memory_rows(result, figures):
        mark, style = marks.get(row.kind) or (letters[row.name, row.kind == "overhead"], "")
        share = percent(row.bytes, result.capacity_bytes)
        gb = [] if row.gb_hundredths is None else [text_of(row.gb_hundredths)]
        cells = (row.name, *gb, text_of(row.hundredths), *([alone(row)] if shared else []), share)
        rows.append([mark, *(Span(cell, style) for cell in cells), Span(row.basis, "muted")])
    columns = [
        Column(""),
        Column("component", most=16),
        *([Column("GB", right=True)] if by_textbook(result) else []),
        Column("GiB", right=True),
        *([Column("alone", right=True, drop=3)] if shared else []),
        Column("% of GPU", right=True, drop=1),
        Column("basis", drop=2, fluid=True),
    ]
    return lines + table(columns, rows, width)


def is_shared(result: FitResult) -> bool:
    """Whether several devices share the model, so that a part is less than on one device alone."""
    return any(part.unsharded_bytes is not None for part in result.components)


def alone(row: MemoryRow) -> str:
    """GiB of a part on one device alone; nothing where there is none, as of sums."""
    if row.unsharded_bytes is None:
        return ""
    return text_of(row.hundredths if row.unsharded_bytes == row.bytes else gib_near(row.unsharded_bytes))


def keys_of(components: Iterable[Component], overheads: Iterable[Component]) -> dict[tuple[str, bool], Span]:
    """What stands for a part in the bar: a coloured block on a terminal, a letter of its own in ASCII."""
    keys: dict[tuple[str, bool], Span] = {}
    taken: set[str] = set()
    for is_overhead, parts in ((False, components), (True, overheads)):
        for number, part in enumerate(parts):
            own = part.name.lower() if is_overhead else _LETTERS.get(part.name, part.name.upper())
            letters = [char for char in own if char.isascii() and char.isalnum()]
            letter = next((char for char in [*letters, *"0123456789"] if char not in taken), "#")
            taken.add(letter)
            style = part.name if part.name in STYLES else "other"
            if is_overhead:
                style = "overhead2" if number % 2 else "overhead"
            keys[part.name, is_overhead] = Span(BLOCK, style, letter)
    return keys


def drawing(result: FitResult, parts: Iterable[tuple[int, Span]], inside: int) -> Line:
    """Bytes and their marks against the usable memory, which is between brackets; what comes out does not fit.

    The brackets are in the `inside` + 2 columns of the line.
    """
    usable, capacity = result.usable_bytes, result.capacity_bytes
    scale = max(capacity, result.peak.high_bytes, 1)

    def at(size: int) -> int:
        return min((2 * size * inside + scale) // (2 * scale), inside)

    drawn: list[Span] = []
    so_far = 0
    for size, key in parts:
        before = at(so_far)
        so_far += size
        drawn += [key] * (at(so_far) - before)
    end = max(at(usable), 1)
    drawn += [Span(FREE, "free", ".")] * (end - len(drawn))
    drawn += [Span("-", "muted")] * (at(capacity) - len(drawn))
    return squeeze([Span("[", "strong"), *drawn[:end], Span("]", "strong"), *drawn[end:]])


def _bar(result: FitResult, figures: ShownFigures, keys: Mapping[tuple[str, bool], Span], width: int) -> list[Line]:
    """The drawing, and under it the range around the likely figure."""
    usable = result.usable_bytes
    scale = max(result.capacity_bytes, result.peak.high_bytes, 1)
    inside = width - 6  # without the indent, the brackets and a free margin

    def at(size: int) -> int:
        return min((2 * size * inside + scale) // (2 * scale), inside)

    parts = [(part.bytes, keys[part.name, False]) for part in result.components]
    parts += [(part.bytes, keys[part.name, True]) for part in result.overheads]
    bar = (Span("  "), *drawing(result, parts, inside))
    if by_textbook(result):
        return [bar]
    so_far = sum(size for size, _ in parts)
    low, device, high = (
        at(size) + (1 if size <= usable else 2) for size in (result.peak.low_bytes, so_far, result.peak.high_bytes)
    )
    marks = ["─"] * (max(high - low, 0) + 1)
    marks[-1] = "┤"
    marks[0] = "├" if len(marks) > 1 else "┼"
    if 0 < device - low < len(marks) - 1:
        marks[device - low] = "┼"
    range_ = "".join(marks)
    plain = range_.translate({0x2500: "-", 0x251C: "|", 0x2524: "|", 0x253C: "+"})
    label = f"range {text_of(figures.low)} to {text_of(figures.high)} GiB"
    under = [Span(" " * (low + 1)), Span(range_, "muted", plain)]
    if low + 1 >= len(label) + 4:
        under = [Span(" " * (low + 1 - len(label) - 2)), Span(label, "muted"), Span("  "), *under[1:]]
    elif high + 4 + len(label) <= width:
        under += [Span("  "), Span(label, "muted")]
    return [bar, tuple(under)]


def squeeze(spans: Iterable[Span]) -> Line:
    """Runs of one mark as one span."""
    line: list[Span] = []
    for span in spans:
        if line and line[-1].style == span.style and span.plain is not None and line[-1].plain is not None:
            line[-1] = Span(line[-1].text + span.text, span.style, line[-1].plain + span.plain)
        else:
            line.append(span)
    return tuple(line)
