"""How an answer leaves: one document on stdout, diagnostics on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vramplan.cli import named
from vramplan.errors import UsageError, near_matches
from vramplan.tuples import NamedTuple

PIPE_WIDTH = 80
FORMATS = ("text", "json", "yaml", "csv", "markdown")
GATE_FORMATS = (*FORMATS, "junit", "github")  # of `check`
FORMAT_WORDS = {"md": "markdown", "yml": "yaml", "txt": "text", "plain": "text", "table": "text"}
DOCUMENTS = ("json", "yaml")  # errors are documents in these


class OutputChoice(NamedTuple):
    """How the caller wants the answer."""

    format: str
    key: str | None
    quiet: bool


def output(format: str, key: str | None, quiet: bool, formats: Sequence[str] = FORMATS) -> OutputChoice:
    """The three options together; formats that a command does not have and `--quiet` with `--print` are refused."""
    format = FORMAT_WORDS.get(format.lower(), format)
    if format not in formats:
        known = f"{', '.join(formats[:-1])} or {formats[-1]}"
        message = f"{format!r} is not a format"
        if format in GATE_FORMATS:
            message = f"{format!r} is a format of check"
        near = near_matches(format, formats)
        raise UsageError(message, key="--format", hint=f"{near} {known}" if near else known)
    if quiet and key is not None:
        raise UsageError("--quiet says nothing, --print says one thing: use one of them", key="--quiet")
    return OutputChoice(format, key, quiet)


# what makes the JSON document of an answer, and what makes its text: imported when asked for
_TEXTS = {
    "fit": "vramplan.report.summary:render_summary",
    "fit-details": "vramplan.report.text:render_fit",
    "check": "vramplan.report.lists:render_check",
    "validate": "vramplan.report.validated:render_validate",
    "gpus": "vramplan.report.lists:render_gpus",
    "models": "vramplan.report.lists:render_models",
    "profile": "vramplan.report.lists:render_profile",
}


_LISTS = (
    *("compare", "check", "validate", "gpus", "models", "runtimes", "profile", "profile-lint", "profile-path"),
    "calibrate",  # whose lines name a file
)

# kinds with a module of their own: `document`, `text`, `csv` and `markdown` of the answer
_OWN: dict[str, str] = {
    "compare": "vramplan.report.compared",
    "plan": "vramplan.report.plans",
    "explain": "vramplan.report.explain",
    "explain-time": "vramplan.report.roofline",
    "timeline": "vramplan.report.timeline",
    "checkpoints": "vramplan.report.checkpoints",
    "walkthrough": "vramplan.report.walkthrough",
    "runtimes": "vramplan.report.runtimes",
    "measure": "vramplan.report.measure",
    "calibrate": "vramplan.report.calibrated",
    "read": "vramplan.report.reading",
    "profile-lint": "vramplan.report.profiles.lint",
    "profile-new": "vramplan.report.profiles.new",
    "profile-diff": "vramplan.report.profiles.diff",
    "profile-path": "vramplan.report.profiles.path",
}

# formats whose renderers have a function `render_KIND` that returns the text
_RENDERERS = {
    "csv": "vramplan.report.csv",
    "markdown": "vramplan.report.markdown",
    "junit": "vramplan.report.junit",
    "github": "vramplan.report.github",
}


def emit(
    kind: str, answer: Any, to: OutputChoice, *, details: bool = False, written: Sequence[Any] = (), **extra: Any
) -> None:
    """Write an answer of a kind: one value, or in the format. `extra` goes to the maker of the document.

    `details` asks for the long text, of kinds that have a short one; the other formats always say everything.
    `written`: the first lines of the text, if they stand on the terminal already.
    """
    if to.quiet:
        return
    own = named(_OWN[kind]) if kind in _OWN else None
    if to.key is not None or to.format in DOCUMENTS:
        if own is not None:
            document = own.document(answer, **extra)
        else:
            document = named(f"vramplan.report.json:{kind}_document")(answer, **extra)
        if to.key is None:
            write(dumps(document, to.format))
        else:
            select = named("vramplan.report.select:select")
            write("".join(select(document, key.strip().removeprefix(".")) + "\n" for key in to.key.split(",")))
        return
    if to.format in _RENDERERS:
        if own is not None:
            write(getattr(own, to.format)(answer))
        else:
            write(named(f"{_RENDERERS[to.format]}:render_{kind}")(answer))
        return
    if own is not None:
        render = own.details if details else own.text
    else:
        render = named(_TEXTS[f"{kind}-details" if details else kind])
    width = terminal_width() if sys.stdout.isatty() else None
    if width is None and kind not in _LISTS:  # lists are for cut and grep: nothing is wrapped or elided
        width = PIPE_WIDTH
    lines = render(answer, width=width)
    write_lines(lines[len(written) :] if list(lines[: len(written)]) == list(written) else lines)


def write_lines(lines: Sequence[Any]) -> None:
    """Lines of a report to stdout, as it takes them."""
    if is_fancy():
        named("vramplan.report.lines:print_rich")(lines)
    else:
        write(named("vramplan.report.lines:to_plain")(lines))


def dumps(document: Mapping[str, Any], format: str) -> str:
    """The text of a document in one of `DOCUMENTS`."""
    text: str = named(f"vramplan.report.{format}:dumps")(document)
    return text


def write(text: str) -> None:
    """Text to stdout, whatever its encoding can hold."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def say(text: str) -> None:
    """A diagnostic to stderr, as one line: what was typed or read does not move the cursor.

    A terminal has it in lines of its width, which end between words.
    """
    if not text.isprintable():
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if sys.stderr.isatty() and len(text) > terminal_width():
        text = named("textwrap:fill")(
            text, terminal_width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    encoding = sys.stderr.encoding or "utf-8"
    try:
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:  # a full disk: the exit code says it, and what is buffered must not fail once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def is_fancy() -> bool:
    """Colour and block characters only on a terminal that wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """Columns of the terminal."""
    import shutil

    return shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
