"""Answers that go into files: written whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
import time

from vramplan.errors import UsageError

MOST_WAIT_SECONDS = 2.0  # for who reads a pipe: it may be started beside us


OTHER_PICTURES = (".png", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".eps", ".ps", ".html")


def check_picture(path: str | None, option: str) -> None:
    """Refuse the file of a picture that cannot be written, before the work whose answer is drawn."""
    if path is None:
        return
    if not path:
        raise UsageError("needs the name of a file", key=option)
    stem, ending = os.path.splitext(path)
    if ending.lower() in OTHER_PICTURES:
        hint = f"name it {stem}.svg; a browser or rsvg-convert makes other pictures of it"
        raise UsageError(f"the picture is SVG, and {path!r} ends as another kind", key=option, hint=hint)
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise _refused(path, "no such file or directory", option)
    if os.path.isdir(path):
        raise _refused(path, "it is a folder", option)


def _refused(path: str, why: str, option: str) -> UsageError:
    hint = "name a file in a folder that is there and can be written to"
    return UsageError(f"cannot write {path!r}: {why[0].lower()}{why[1:]}", key=option, hint=hint)


def save(path: str, text: str, option: str) -> None:
    """Put `text` (UTF-8) into a file, replacing one that is there only when all of it is on the disk.

    A pipe or a device is written to as it is. Raises UsageError with the option that named the path.
    """
    if not path:
        raise UsageError("needs the name of a file", key=option)
    target = os.path.realpath(path)
    try:
        mode = os.stat(target).st_mode if os.path.exists(target) else None
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "it is a folder", path)
        if mode is not None and not stat.S_ISREG(mode):
            with open(_opened(target), "w", encoding="utf-8") as device:
                device.write(text)
            return
        if mode is not None and not os.access(target, os.W_OK):  # a rename would not ask
            raise PermissionError(None, "it is write-protected", path)
        _replace(target, text, mode)
    except (OSError, ValueError) as error:
        raise _refused(path, getattr(error, "strerror", None) or str(error), option) from None


def _opened(target: str) -> int:
    """A pipe or a device, open for writing. Raises OSError for a pipe that nobody opens to read, after a while."""
    end = time.monotonic() + MOST_WAIT_SECONDS
    while True:
        try:
            handle = os.open(target, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, "nobody reads from the pipe", target) from None
            time.sleep(0.05)
        else:
            os.set_blocking(handle, True)
            return handle


def _replace(target: str, text: str, mode: int | None) -> None:
    """A temporary file beside the target, then a rename: a reader sees the old one or the new one."""
    beside = os.path.join(os.path.dirname(target), f".vramplan-{os.getpid()}-{time.monotonic_ns()}.tmp")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
