"""How an answer leaves: one document on stdout, diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vramplan.errors import UsageError

PIPE_WIDTH = 80
FORMATS = ("text", "json")


def check_options(output_format: str, key: str | None, quiet: bool) -> None:
    """Refuse formats that nobody knows, and `--quiet` with `--print`."""
    if output_format not in FORMATS:
        raise UsageError(f"{output_format!r} is not a format", key="--format", hint="text or json")
    if quiet and key is not None:
        raise UsageError("--quiet says nothing, --print says one thing: use one of them", key="--quiet")


def emit(
    document: Callable[[], Mapping[str, Any]],
    lines: Callable[[int | None], Any],
    *,
    output_format: str,
    key: str | None,
    quiet: bool,
    wrap_pipes: bool = False,
) -> None:
    """Write the answer: one value, JSON, or text.

    `document` makes the JSON document, `lines` the text at a width (None: as wide as it is, unless `wrap_pipes`).
    """
    if quiet:
        return
    if key is not None:
        from vramplan.report.select import select

        write(select(document(), key) + "\n")
    elif output_format == "json":
        from vramplan.report.json import dumps

        write(dumps(document()))
    elif is_fancy():
        from vramplan.report.lines import print_rich

        print_rich(lines(terminal_width()))
    else:
        from vramplan.report.lines import to_plain

        width = terminal_width() if sys.stdout.isatty() else (PIPE_WIDTH if wrap_pipes else None)
        write(to_plain(lines(width)))


def write(text: str) -> None:
    """Text to stdout, whatever its encoding can hold."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def say(text: str) -> None:
    """A diagnostic to stderr, as one line: what was typed or read does not move the cursor."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    encoding = sys.stderr.encoding or "utf-8"
    sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def is_fancy() -> bool:
    """Colour and block characters only on a terminal that wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
