"""A light layout: a report is a list of lines, a line is a tuple of spans, a span is a text with the name of a style.

One layout serves two readers. A pipe gets `to_plain`: pure ASCII, no colour, nothing imported. A terminal gets
`print_rich`, the only place that imports Rich (40 ms). The two differ only in how a span is drawn, never in its width,
so that what a person sees and what `cut` sees are the same columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from vramplan.tuples import NamedTuple


class Span(NamedTuple):
    """A piece of text with the name of a style; `plain` replaces the text, in the same width, where ASCII is wanted."""

    text: str
    style: str = ""
    plain: str | None = None


Line = tuple[Span, ...]

# Semantic names to Rich styles. Sixteen-colour names follow the theme of the terminal; the bar needs a few more hues
# that read on light and on dark backgrounds.
STYLES = {
    "": "",
    "heading": "bold",
    "strong": "bold",
    "muted": "dim",
    "note": "yellow",
    "flags": "cyan",
    "fits": "bold green",
    "passed": "green",
    "tight": "bold yellow",
    "does-not-fit": "bold red",
    "failed": "bold red",
    "error": "bold magenta",
    "over": "red",
    "free": "dim",
    "weights": "color(68)",
    "master": "color(74)",
    "optimizer": "color(61)",
    "ema": "color(110)",
    "reference": "color(67)",
    "gradients": "color(37)",
    "activations": "color(172)",
    "weight_casts": "color(143)",
    "gathered": "color(67)",
    "in_flight": "color(178)",
    "communication": "color(103)",
    "temporaries": "color(131)",
    "workspace": "color(96)",
    "buffers": "color(101)",
    "inputs": "color(71)",
    "other": "color(139)",
    "overhead": "color(245)",
    "overhead2": "color(241)",
}

# What stands for them on a terminal of sixteen colours, where the hues above would fall together.
OF_SIXTEEN = {
    "weights": "bright_blue",
    "master": "blue",
    "optimizer": "bright_cyan",
    "ema": "blue",
    "reference": "blue",
    "gradients": "bright_green",
    "activations": "bright_yellow",
    "weight_casts": "bright_magenta",
    "gathered": "cyan",
    "in_flight": "yellow",
    "communication": "magenta",
    "temporaries": "bright_red",
    "workspace": "magenta",
    "buffers": "green",
    "inputs": "green",
    "other": "bright_white",
    "overhead": "white",
    "overhead2": "bright_black",
}
BLOCK = "█"
BLOCKS = frozenset("▁▂▃▄▅▆▇█")  # of drawings, each part in a colour of its own; their plain text is letters

# Signs that a terminal may get, and what a pipe gets in the same width.
_ASCII = str.maketrans("×–—±·→≤≥“”’█┃", "x--~->" + "<>" + '""\'' + "#+")


def clean(text: str) -> str:
    """`text` without anything that would move the cursor: control characters and line breaks become '?' and ' '."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\n\r\t" else "?" for char in text)


def cells(text: str) -> int:
    """How many columns a terminal needs for `text`."""
    if text.isascii():
        return len(text)
    import unicodedata  # only a name from outside ASCII pays for it

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def width_of(line: Line) -> int:
    """Columns of a line."""
    return sum(cells(span.text) for span in line)


def elide(text: str, width: int) -> str:
    """`text` in at most `width` columns, with dots in its middle when it has to give: both ends tell names apart."""
    text = clean(text)
    if cells(text) <= width:
        return text
    if not text.isascii():  # columns and characters differ: cut from the right until it fits
        while text and cells(text) > max(width - 2, 0):
            text = text[:-1]
        return (text + "..")[:width] if width > 2 else text
    if width <= 4:
        return text[:width]
    head = (width - 1) // 2
    return text[:head] + ".." + text[len(text) - (width - 2 - head) :]


def wrap(spans: Iterable[Span], width: int, *, first: int = 0, rest: int | None = None) -> list[Line]:
    """Break a paragraph at spaces into lines of at most `width` columns; `first` and `rest` are the indents.

    A word that no line can hold is broken where it must be.
    """
    rest = first if rest is None else rest
    if rest > width // 2:
        rest = 2
    lines: list[Line] = []
    current: list[Span] = [Span(" " * first)] if first else []
    used, empty = first, True

    def newline() -> None:
        nonlocal current, used, empty
        lines.append(tuple(current))
        current = [Span(" " * rest)] if rest else []
        used, empty = rest, True

    for span in spans:
        for number, word in enumerate(clean(span.text).split(" ")):
            size = cells(word)
            gap = 1 if number else 0  # spaces inside a span separate words; neighbouring spans touch
            if gap and not empty and used + gap + size > width:
                newline()
            elif gap and not empty:
                current.append(Span(" ", span.style))
                used += 1
            elif size and used + size > width and not empty:
                newline()
            while cells(word) > max(width - used, 1):
                room = max(width - used, 1)
                while cells(word[:room]) > max(width - used, 1) and room > 1:
                    room -= 1
                current.append(Span(word[:room], span.style))
                word = word[room:]
                newline()
            if word:
                current.append(Span(word, span.style))
                used += cells(word)
                empty = False
    if not empty or not lines:
        lines.append(tuple(current))
    return [_join(line) for line in lines]


class Column(NamedTuple):
    """One column of a table. `drop`: the columns with the highest number go first when the width is short; 0 never."""

    title: str
    right: bool = False
    drop: int = 0
    most: int | None = None  # longer cells are elided
    fluid: bool = False  # takes what is left and wraps; at most one, the last


Cell = Span | str


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    width: int | None,
    *,
    indent: int = 2,
    gap: int = 2,
    header: bool = True,
) -> list[Line]:
    """Aligned columns without a box. With `width` None nothing is dropped, elided or wrapped: a script reads it."""
    grid = [[cell if isinstance(cell, Span) else Span(cell) for cell in row] for row in rows]
    grid = [[cell._replace(text=clean(cell.text)) for cell in row] for row in grid]
    size = []
    for place, column in enumerate(columns):
        widest = max([cells(row[place].text) for row in grid] + [cells(column.title) if header else 0])
        size.append(
            widest if width is None or column.most is None else min(widest, max(column.most, len(column.title)))
        )
    keep = list(range(len(columns)))
    if width is not None:

        def total() -> int:
            need = indent + gap * (len(keep) - 1)
            return need + sum(min(size[p], 20) if columns[p].fluid else size[p] for p in keep)

        while total() > width and any(columns[p].drop for p in keep):
            keep.remove(max((p for p in keep if columns[p].drop), key=lambda p: columns[p].drop))
        texts = sorted((p for p in keep if not columns[p].right), key=lambda p: -size[p]) or keep[:1]
        for place in texts:  # still too wide: shorten the columns that hold text, the widest first
            size[place] = max(size[place] - max(total() - width, 0), min(size[place], 4))
        for p in keep:
            if columns[p].fluid:
                size[p] = min(size[p], width - (total() - min(size[p], 20)))
    lines: list[Line] = []
    if header:
        titles = [Span(column.title, "muted") for column in columns]
        lines += _row(columns, titles, keep, size, indent, gap, wrapping=width is not None)
    for row in grid:
        lines += _row(columns, row, keep, size, indent, gap, wrapping=width is not None)
    return lines


def _row(
    columns: Sequence[Column],
    row: Sequence[Span],
    keep: Sequence[int],
    size: Sequence[int],
    indent: int,
    gap: int,
    *,
    wrapping: bool,
) -> list[Line]:
    spans: list[Span] = [Span(" " * indent)]
    more: list[Line] = []
    at = indent
    for number, place in enumerate(keep):
        if number:
            spans.append(Span(" " * gap))
            at += gap
        span = row[place]
        if columns[place].fluid and wrapping:
            pieces = wrap([span], size[place]) if span.text else [()]
            spans.extend(pieces[0])
            more = [(Span(" " * at), *piece) for piece in pieces[1:]]
            continue
        text = span.text if not wrapping else elide(span.text, size[place])
        plain = span.plain if text == span.text else None
        padding = Span(" " * (size[place] - cells(text)))
        spans += (
            [padding, Span(text, span.style, plain)]
            if columns[place].right
            else [Span(text, span.style, plain), padding]
        )
        at += size[place]
    return [_join(_trim(tuple(spans))), *more]


def stacked(sections: Iterable[list[Line]]) -> list[Line]:
    """The sections that have lines, an empty line between them."""
    lines: list[Line] = []
    for section in sections:
        if section and lines:
            lines.append(())
        lines += section
    return lines


def _trim(line: Line) -> Line:
    """Without spaces at the end."""
    spans = list(line)
    while spans and not spans[-1].text.rstrip(" "):
        spans.pop()
    if spans:
        last = spans[-1]
        if last.plain is None:
            spans[-1] = last._replace(text=last.text.rstrip(" "))
    return tuple(spans)


def _join(line: Line) -> Line:
    """Neighbouring spans of one style as one span."""
    joined: list[Span] = []
    for span in line:
        if not span.text:
            continue
        if joined and joined[-1].style == span.style and joined[-1].plain is None and span.plain is None:
            joined[-1] = Span(joined[-1].text + span.text, span.style)
        else:
            joined.append(span)
    return tuple(joined)


def ascii_of(text: str) -> str:
    """`text` in ASCII, in the same width."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else "?" * cells(char) for char in text.translate(_ASCII))


def to_plain(lines: Iterable[Line]) -> str:
    """The report for a pipe: ASCII, no colour, no spaces at line ends, a line break at the end."""
    rows = ("".join(ascii_of(span.text if span.plain is None else span.plain) for span in line) for line in lines)
    return "".join(row.rstrip(" ") + "\n" for row in rows)


def _rich_style(name: str, styles: Mapping[str, str]) -> str:
    """A style; `weights/optimizer` is the colour of the one on a ground of the other."""
    colour, _, ground = name.partition("/")
    style = styles.get(colour, "")
    return f"{style} on {styles[ground]}".strip() if ground else style


def print_rich(lines: Iterable[Line], file: IO[str] | None = None) -> None:
    """Write the report to a terminal (standard output if `file` is None), in colour where the terminal has colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    unicode = console.encoding.lower().replace("-", "").startswith("utf")
    few = console.color_system in ("standard", "windows")  # then letters tell the parts apart, and colours help
    styles = STYLES | OF_SIXTEEN if few else STYLES
    for line in lines:
        text = Text(no_wrap=True, overflow="ignore", end="")
        for span in line:
            drawn = span.plain is not None and not BLOCKS.isdisjoint(span.text)
            shown = span.text
            if not unicode or (few and drawn):
                shown = ascii_of(span.text if span.plain is None else span.plain)
            text.append(shown, _rich_style(span.style, styles))
        console.print(text, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
