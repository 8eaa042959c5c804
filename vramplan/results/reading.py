"""What the files of a training program mean, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.tuples import NamedTuple


class Source(NamedTuple):
    """A setting that a value of a job comes from. `line` is None where no file gives it: then a default did."""

    key: str
    value: Any = None
    file: str | None = None
    line: int | None = None
    column: int | None = None

    @property
    def is_default(self) -> bool:
        """Whether the program's default gave the value."""
        return self.file is None and self.line is None


class ReadValue(NamedTuple):
    """One value of the job, and the settings that gave it."""

    key: str
    value: Any
    sources: tuple[Source, ...]


class ReadJob(NamedTuple):
    """The job that files mean."""

    program: str
    release: str
    released: str
    source: str
    """Where the defaults of the release stand: repository, files, commit."""

    files: tuple[str, ...]
    job: Mapping[str, Any]
    """Nested, in the keys of a job."""

    values: tuple[ReadValue, ...]
    open: Mapping[str, str]
    """Keys of the job that the files leave open, each with who gives them."""

    without_effect: tuple[Source, ...]
    unmodelled: Mapping[str, str]
    """Settings that change memory or time and for which a job has no word, each with what it changes."""

    not_understood: tuple[Source, ...]
    notes: tuple[str, ...]
    points_to: Mapping[str, str]
    """Settings that name another file."""

    allocator: str | None = None
    """What the program sets of the caching allocator by itself, in the words of PYTORCH_ALLOC_CONF."""
