"""Profiles that are read once: a session opens a memo of files, and who reads a profile asks it first.

A command reads a handful of files and ends, so nothing is kept where no memo is open.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from stat import S_ISDIR
from threading import Lock
from typing import Any, TypeVar

T = TypeVar("T")

MOST_FILES = 1024  # twice the shipped profiles as text and as values, about 10 MB

_open: ContextVar[FileMemo | None] = ContextVar("files", default=None)


class FileMemo:
    """What was made of files, by the function that made it and the path. It keeps the most recently used.

    A file is read again when its time of modification, its size or the file behind the path is another, and a folder
    when a file in it is. What could not be read is not kept. Threads may share it. Who gets a value must not change it.
    """

    def __init__(self, most_files: int = MOST_FILES) -> None:
        self.most_files = most_files
        self._known: OrderedDict[tuple[Any, str], tuple[tuple[Any, ...], Any]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        """Values that are kept."""
        return len(self._known)

    def read(self, load: Callable[[Path | str], T], path: Path | str) -> T:
        """`load(path)`."""
        key = load, os.fspath(path)
        state = _state(key[1])
        with self._lock:
            found = self._known.get(key)
            if found is not None and found[0] == state:
                self._known.move_to_end(key)
                value: T = found[1]
                return value
        value = load(path)
        if state is not None:  # taken before the file was read, so that a change meanwhile is found
            with self._lock:
                self._known[key] = state, value
                self._known.move_to_end(key)
                while len(self._known) > self.most_files:
                    self._known.popitem(last=False)
        return value


def _state(path: str) -> tuple[Any, ...] | None:
    """What is another when a file has changed, or a file in a folder; None where there is none."""
    try:
        found = os.stat(path)
        if not S_ISDIR(found.st_mode):
            return _numbers(found)
        with os.scandir(path) as entries:
            return tuple((entry.name, *_numbers(entry.stat())) for entry in entries)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def _numbers(found: os.stat_result) -> tuple[int, ...]:
    # the time of the last change of its inode too, as a file that may be read again has the old time of modification
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


@contextmanager
def opened(files: FileMemo) -> Iterator[None]:
    """Within, in this thread, functions that are read `once` ask `files` first."""
    token = _open.set(files)
    try:
        yield
    finally:
        _open.reset(token)


@contextmanager
def kept() -> Iterator[None]:
    """Within, in this thread, such functions ask the memo that is open; where none is, a new one."""
    if _open.get() is not None:
        yield
        return
    with opened(FileMemo()):
        yield


def once(load: Callable[[Path | str], T]) -> Callable[[Path | str], T]:
    """The function of a path with the memo of files that is open, if one is."""

    @wraps(load)
    def read(path: Path | str) -> T:
        files = _open.get()
        return load(path) if files is None else files.read(load, path)

    return read
