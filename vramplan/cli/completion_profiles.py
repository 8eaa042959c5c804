"""What a shell offers of profiles, read from the text of their files: to parse them would take too long."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vramplan.catalog.locate import aliases_in, files, slug
from vramplan.catalog.runtimes import names_of_runtimes
from vramplan.cli.completion_values import OfferedWord, TypedLine
from vramplan.options.words import RUNTIMES

_TITLE = re.compile(r"^\s*[\"']?title[\"']?:\s*[\"']?(.*?)[\"']?,?\s*$", re.MULTILINE)


def names(kind: Any, line: TypedLine, current: str) -> Iterator[OfferedWord]:
    """Names of profiles and, once something is typed, aliases, which are many."""
    wanted = slug(current)
    for name, text in _texts(kind, line):
        title = _TITLE.search(text)
        described = title[1] if title else ""
        if name.startswith(wanted):
            yield OfferedWord(name, described)
        elif wanted:
            for alias in aliases_in(text):
                if slug(alias).startswith(wanted):
                    yield OfferedWord(slug(alias), described)


def runtimes() -> tuple[str, ...]:
    """The shipped runtimes, those of the user's folders, and those of other packages."""
    return tuple(dict.fromkeys((*RUNTIMES, *names_of_runtimes())))


def field_words(kind: Any, field: str, line: TypedLine) -> list[str]:
    """The words that a field has in the profiles of a kind."""
    pattern = re.compile(rf"^\s+{field}:\s*(?:{{\s*value:\s*)?([a-z]\w*)", re.MULTILINE)
    found = (pattern.search(text) for _, text in _texts(kind, line))
    return sorted({match[1] for match in found if match})


def _texts(kind: Any, line: TypedLine) -> Iterator[tuple[str, str]]:
    """Name and text of every profile of a kind that can be read."""
    for name, path in files(kind, [Path(folder).expanduser() for folder in line.options.get("profiles", ())]).items():
        with contextlib.suppress(OSError, ValueError):
            yield name, path.read_text("utf-8")
