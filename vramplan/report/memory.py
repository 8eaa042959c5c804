"""Memory at the peak, drawn: a bar against the capacity, and the way from the components to the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vramplan.report.lines import STYLES, Cell, Column, Line, Span, table, wrap
from vramplan.report.numbers import apportion, gib_against, gib_down, gib_up, percent, text_of
from vramplan.results import Component, FitResult

_LETTERS = {
    "weights": "W",
    "master": "M",
    "optimizer": "O",
    "gradients": "G",
    "activations": "A",
    "weight_casts": "C",
    "temporaries": "T",
    "workspace": "K",
    "buffers": "B",
    "inputs": "I",
}
BLOCK, FREE = "█", "░"


class Figures:
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


def memory(result: FitResult, figures: Figures, width: int) -> list[Line]:
    """The bar, and under it every part in GiB and in percent of the GPU."""
    peak = result.peak
    lines = wrap(
        [Span("Memory at the peak", "heading"), Span(f"  {peak.phase}, {peak.operator}", "muted")], width, rest=2
    )
    letters = _keys(result.components, result.overheads)
    lines += _bar(result, figures, letters, width)
    lines.append(())

    rows: list[list[Cell]] = []

    def add(key: Span, name: str, hundredths: int, size: int | None, basis: str, style: str = "") -> None:
        share = "" if size is None else percent(size, result.capacity_bytes)
        rows.append(
            [key, Span(name, style), Span(text_of(hundredths), style), Span(share, style), Span(basis, "muted")]
        )

    total = Span("=", "muted")
    for part, hundredths in zip(result.components, figures.components, strict=True):
        if part.bytes:
            add(letters[part.name, False], part.name, hundredths, part.bytes, part.basis)
    add(total, "allocated", figures.allocated, peak.allocated_bytes, "torch.cuda.max_memory_allocated()", "strong")
    so_far = peak.allocated_bytes
    for part, hundredths in zip(result.overheads, figures.overheads, strict=True):
        if part.bytes:
            add(letters[part.name, True], part.name, hundredths, part.bytes, part.basis)
        so_far += part.bytes
        if so_far == peak.reserved_bytes and so_far != peak.device_bytes and part.bytes:
            add(total, "reserved", figures.reserved, peak.reserved_bytes, "torch.cuda.max_memory_reserved()", "strong")
    add(total, "device", figures.device, peak.device_bytes, "what nvidia-smi shows", "strong")
    if figures.headroom < 0:
        add(Span("!", "over"), "free", figures.headroom, result.headroom_bytes, "", "over")
    else:
        add(Span(FREE, "free", "."), "free", figures.headroom, result.headroom_bytes, "")
    if figures.capacity > figures.usable:
        add(total, "usable", figures.usable, result.usable_bytes, "", "strong")
        kept = result.capacity_bytes - result.usable_bytes
        add(Span("-", "muted"), "reserve", figures.capacity - figures.usable, kept, "held back for others")
        add(total, "capacity", figures.capacity, result.capacity_bytes, "", "strong")
    else:
        add(total, "usable", figures.usable, result.usable_bytes, "all that the GPU offers", "strong")
    columns = [
        Column(""),
        Column("component", most=16),
        Column("GiB", right=True),
        Column("% of GPU", right=True, drop=1),
        Column("basis", drop=2, fluid=True),
    ]
    return lines + table(columns, rows, width)


def _keys(components: Iterable[Component], overheads: Iterable[Component]) -> dict[tuple[str, bool], Span]:
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


def _bar(result: FitResult, figures: Figures, keys: Mapping[tuple[str, bool], Span], width: int) -> list[Line]:
    """The parts against the usable memory, which is between the brackets; what comes out of them does not fit."""
    usable, capacity = result.usable_bytes, result.capacity_bytes
    scale = max(capacity, result.peak.high_bytes, 1)
    inside = width - 6  # without the indent, the brackets and a free margin

    def at(size: int) -> int:
        return min((2 * size * inside + scale) // (2 * scale), inside)

    drawn: list[Span] = []
    so_far = 0
    parts = [(part, keys[part.name, False]) for part in result.components]
    parts += [(part, keys[part.name, True]) for part in result.overheads]
    for part, key in parts:
        before = at(so_far)
        so_far += part.bytes
        drawn += [key] * (at(so_far) - before)
    end = max(at(usable), 1)
    drawn += [Span(FREE, "free", ".")] * (end - len(drawn))
    drawn += [Span("-", "muted")] * (at(capacity) - len(drawn))
    spans = [Span("  "), Span("[", "strong"), *drawn[:end], Span("]", "strong"), *drawn[end:]]

    low, device, high = (
        at(size) + (1 if size <= usable else 2) for size in (result.peak.low_bytes, so_far, result.peak.high_bytes)
    )
    marks = ["─"] * (max(high - low, 0) + 1)
    marks[-1] = "┤"
    marks[0] = "├" if len(marks) > 1 else "┼"
    if 0 < device - low < len(marks) - 1:
        marks[device - low] = "┼"
    drawing = "".join(marks)
    plain = drawing.translate({0x2500: "-", 0x251C: "|", 0x2524: "|", 0x253C: "+"})
    label = f"band {text_of(figures.low)} to {text_of(figures.high)} GiB"
    under = [Span(" " * (low + 1)), Span(drawing, "muted", plain)]
    if low + 1 >= len(label) + 4:
        under = [Span(" " * (low + 1 - len(label) - 2)), Span(label, "muted"), Span("  "), *under[1:]]
    elif high + 4 + len(label) <= width:
        under += [Span("  "), Span(label, "muted")]
    return [_squeeze(spans), tuple(under)]


def _squeeze(spans: Iterable[Span]) -> Line:
    """Runs of one mark as one span."""
    line: list[Span] = []
    for span in spans:
        if line and line[-1].style == span.style and span.plain is not None and line[-1].plain is not None:
            line[-1] = Span(line[-1].text + span.text, span.style, line[-1].plain + span.plain)
        else:
            line.append(span)
    return tuple(line)
