"""Reading a text as a file of a training program, and what came out of it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from vramplan.configs.combine import read_files
from vramplan.configs.reading import Wanted, read
from vramplan.results.reading import ReadJob


def meant(text: str, file: str, **wanted: Any) -> ReadJob:
    """The job that a text means; it is taken out of its indentation."""
    return read(textwrap.dedent(text).lstrip("\n"), file, Wanted(**wanted))


def job(text: str, file: str, **wanted: Any) -> dict[str, Any]:
    """Its job with dotted keys, but for a model that is a mapping."""
    return {value.key: value.value for value in meant(text, file, **wanted).values}


def holds(found: dict[str, Any], **expected: Any) -> None:
    """Hold keys, with `__` for a dot, to their values; None is a key that is not there."""
    for name, value in expected.items():
        assert found.get(name.replace("__", ".")) == value, (name, found)


def together(folder: Path, files: dict[str, str], start: str) -> ReadJob:
    """What a file means with the others beside it."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip("\n"), "utf-8")
    return read_files([str(folder / start)], Wanted())
