"""How an answer leaves: one document on stdout, diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NamedTuple

from vramplan.errors import UsageError

PIPE_WIDTH = 80
FORMATS = ("text", "json")


class Output(NamedTuple):
    """How the caller wants the answer."""

    format: str
    key: str | None
    quiet: bool


def output(format: str, key: str | None, quiet: bool) -> Output:
    """The three options together; formats that nobody knows and `--quiet` with `--print` are refused."""
    if format not in FORMATS:
        raise UsageError(f"{format!r} is not a format", key="--format", hint="text or json")
    if quiet and key is not None:
        raise UsageError("--quiet says nothing, --print says one thing: use one of them", key="--quiet")
    return Output(format, key, quiet)


# what makes the JSON document of an answer, and what makes its text: imported when asked for
_TEXTS = {
    "fit": ("vramplan.report.text", "render_fit"),
    "check": ("vramplan.report.lists", "render_check"),
    "validate": ("vramplan.report.lists", "render_validate"),
    "gpus": ("vramplan.report.lists", "render_gpus"),
    "models": ("vramplan.report.lists", "render_models"),
    "profile": ("vramplan.report.lists", "render_profile"),
}


def emit(kind: str, answer: Any, to: Output, **extra: Any) -> None:
    """Write an answer of a kind: one value, JSON, or text. `extra` goes to the maker of the document."""
    if to.quiet:
        return
    if to.key is not None or to.format == "json":
        from vramplan.report import json

        document = getattr(json, f"{kind}_document")(answer, **extra)
        if to.key is None:
            write(json.dumps(document))
        else:
            from vramplan.report.select import select

            write(select(document, to.key) + "\n")
        return
    from vramplan.report.lines import print_rich, to_plain

    module, function = _TEXTS[kind]
    render = getattr(import_module(module), function)
    if is_fancy():
        print_rich(render(answer, width=terminal_width()))
    else:
        piped = PIPE_WIDTH if kind == "fit" else None  # lists are for cut and grep: nothing is wrapped or elided
        write(to_plain(render(answer, width=terminal_width() if sys.stdout.isatty() else piped)))


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
