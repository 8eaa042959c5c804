"""Sections of a page of text: a label in a column of its own, and words behind it on as few lines as they need."""

from __future__ import annotations

from collections.abc import Sequence

from vramplan.report.lines import Line, Span, clean, width_of, wrap

LABELLED = 60  # from this width on, labels have a column of their own


class Item(tuple[Span, ...]):
    """Words that stay on one line where they can."""

    __slots__ = ()


def item_of(text: str, style: str = "") -> Item:
    """Words in one style."""
    return Item((Span(clean(text), style),))


def laid_out(
    label: str, items: Sequence[Item], width: int, most: int, *, between: str = ",", tail: Item | None = None
) -> list[Line]:
    """A label and items behind it in at most `most` lines; the last items are left out where they do not fit.

    `tail` stands at the end in any case, and is not separated by `between`.
    """
    if most < 1 or not items:
        return []
    indent = indent_of(width)
    for count in range(len(items), 0, -1):
        pieces = [Item((*item, Span(between))) for item in items[: count - 1]] + [items[count - 1]]
        lines = labelled(label, _packed([*pieces, *([tail] if tail else [])], width - indent, label, indent), indent)
        if len(lines) <= most:
            return lines
    return lines[:most]


def _packed(items: Sequence[Item], room: int, label: str, indent: int) -> list[list[Span]]:
    """Items on as few lines of `room` columns as they need; one that no line holds is broken at its spaces."""
    lines: list[list[Span]] = [[]]
    used = label_columns(label, indent)
    for item in items:
        size = width_of(item)
        if size > room:
            wrapped = wrap(item, room, first=used and min(used + 1, room - 1), rest=0)
            lines[-1] += [Span(" "), *_stripped(wrapped[0])] if used and lines[-1] else _stripped(wrapped[0])
            lines += [list(line) for line in wrapped[1:]]
            used = width_of(tuple(lines[-1])) + (label_columns(label, indent) if len(lines) == 1 else 0)
            continue
        gap = 1 if lines[-1] else 0
        if used + gap + size > room:
            lines.append([])
            used = gap = 0
        lines[-1] += [Span(" " * gap), *item]
        used += gap + size
    return lines


def paragraph(label: str, spans: Sequence[Span], width: int) -> list[Line]:
    """A sentence behind a label."""
    indent = indent_of(width)
    lines = wrap(spans, width - indent, first=label_columns(label, indent), rest=0)
    return labelled(label, [_stripped(lines[0]), *lines[1:]], indent)


def indent_of(width: int) -> int:
    """Where the words of a section begin: behind the column of the labels, where there is room for one."""
    return 10 if width >= LABELLED else 4


def label_columns(label: str, indent: int) -> int:
    """The columns that a label takes of the first line behind the indent."""
    return max(2 + len(label) + 1 - indent, 0) if label else 0


def labelled(label: str, lines: Sequence[Sequence[Span]], indent: int) -> list[Line]:
    """The lines with their indent, the first with its label."""
    head = Span((f"  {label} " if label else "").ljust(indent), "muted")
    rest = Span(" " * indent)
    whole = [(head if number == 0 else rest, *line) for number, line in enumerate(lines)]
    return [tuple(span for span in line if span.text) for line in whole]


def _stripped(line: Sequence[Span]) -> list[Span]:
    """Without the spaces it begins with."""
    spans = list(line)
    while spans and not spans[0].text.strip(" "):
        del spans[0]
    return [spans[0]._replace(text=spans[0].text.lstrip(" ")), *spans[1:]] if spans else []
