"""The text of a file that a user names: regular files and standard input, of a fair size, in UTF-8."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
from functools import lru_cache
from typing import BinaryIO

from vramplan.errors import InputError, Problem, near_matches

MAX_BYTES = 8 * 2**20  # the largest file that people keep by hand is 0.5 MB

NEAR = 0.75  # of difflib: names that one slip of the fingers makes of each other
STDIN_NAMES = frozenset({"-", "/dev/stdin"})
PASTED = "the pasted command"  # the name of a text that was given among the words of the command line
_PASTED: dict[str, bytes] = {}
DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")  # a shell's process substitution: a pipe that somebody writes


def read_text(file: str, *, allow_stdin: bool = False, most_bytes: int = MAX_BYTES, allow_utf16: bool = False) -> str:
    """The whole text. Raises InputError, which names the file and the place, also for more than `most_bytes`.

    Standard input can be named as often as a file: what was read of it is kept. `allow_utf16`: also a text that begins
    with the mark of UTF-16, as PowerShell's redirection writes it.
    """
    if file in _PASTED:
        return _decode(_of_fair_size(_PASTED[file], file), file)
    data = _read_stdin() if allow_stdin and file in STDIN_NAMES else _read_bytes(file, most_bytes)
    return _decode(data, file, allow_utf16)


def paste(text: str) -> str:
    """Keep a text that was given on the command line; the name under which it is read."""
    _PASTED[PASTED] = text.encode(errors="surrogateescape")
    return PASTED


def fail(message: str, file: str | None, line: int | None = None, column: int | None = None) -> InputError:
    """An InputError with one problem, to be raised."""
    return InputError([Problem(message, file=file, line=line, column=column)])


def missing(file: str) -> Problem:
    """That there is no such file, with the names beside it that are like it."""
    folder, name = os.path.split(file)
    try:
        beside = {each: os.path.join(folder, each) for each in os.listdir(folder or ".")}
    except FileNotFoundError:
        return Problem("no such file", file=file, hint=f"there is no folder {folder}")
    except OSError:  # whose names nobody may list
        return Problem("no such file", file=file)
    hint = near_matches(name, beside, NEAR, named=beside)
    return Problem("no such file", file=file, hint=hint or f"it is looked for in {os.path.abspath(folder or '.')}")


def _read_bytes(file: str, most_bytes: int) -> bytes:
    try:
        mode = os.stat(file).st_mode
        if stat.S_ISDIR(mode):
            raise fail("is a directory, not a file", file)
        if not stat.S_ISREG(mode) and not (stat.S_ISFIFO(mode) and file.startswith(DESCRIPTORS)):
            raise fail("is not a regular file", file)  # a pipe or a device may never end
        with open(file, "rb") as stream:
            data = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise InputError([missing(file)]) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise fail(f"cannot be read: {reason}", file) from None
    return _of_fair_size(data, file, most_bytes)


def _read_stdin() -> bytes:
    if sys.stdin is None:
        raise fail("standard input is closed", "-")
    try:
        return _of_fair_size(_whole(sys.stdin.buffer), "-")
    except (OSError, ValueError, AttributeError) as error:  # closed, or replaced by something without a buffer
        raise fail(f"standard input cannot be read: {error}", "-") from None


@lru_cache(maxsize=1)  # by the stream: a program may run several commands, each with its own
def _whole(stream: BinaryIO) -> bytes:
    return stream.read(MAX_BYTES + 1)


def _of_fair_size(data: bytes, file: str, most_bytes: int = MAX_BYTES) -> bytes:
    if len(data) > most_bytes:
        raise fail(f"is larger than {most_bytes // 2**20} MiB", file)
    return data


def _decode(data: bytes, file: str, allow_utf16: bool = False) -> str:
    is_wide = allow_utf16 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise fail("is not UTF-8 text", file, line, error.start - data.rfind(b"\n", 0, error.start)) from None
    # the C parser names no line for these
    odd = re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text)
    if odd:
        line = text.count("\n", 0, odd.start()) + 1
        column = odd.start() - text.rfind("\n", 0, odd.start())
        raise fail(f"holds the control character U+{ord(odd[0]):04X}: is it a text file?", file, line, column)
    return text
