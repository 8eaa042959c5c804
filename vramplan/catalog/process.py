"""Ask another program: with a limit on time and on size, and without leaving anything of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
from threading import Thread
from time import monotonic
from typing import Any

TIMEOUT_S = 10.0  # a driver that is stuck never answers; a cold one needs two or three seconds
MIB = 1 << 20
LONGEST_SHOWN = 120  # characters of what a tool printed

_LONGEST_ANSWER = 4 * MIB  # bytes; a machine of sixteen cards takes some kilobytes


class Failed(Exception):
    """A tool gave no answer, or none that can be used; `str` says why."""


def run(path: str, *words: str) -> str:
    """What the tool prints on stdout. Raises Failed, also when it hangs, never stops or cannot be started."""
    end = monotonic() + TIMEOUT_S
    try:
        process = subprocess.Popen(
            [path, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"cannot be started: {error.strerror or error}") from None
    with process:
        out, err = (_PipeReader(stream) for stream in (process.stdout, process.stderr))
        try:
            text, said = out.until(end), err.until(end)
            process.wait(max(0.0, end - monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise Failed(f"gave no answer within {TIMEOUT_S:g} s") from None
        finally:
            _end(process)
    if process.returncode != 0:
        why = next(iter([*lines(text), *lines(said)]), "it says nothing")
        raise Failed(f"failed with exit code {process.returncode}: {shown(why)}")
    return text


class _PipeReader:
    """Reads a pipe beside the main thread: neither silence nor a flood holds the program up."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._data = b""
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        self._data = self._stream.read(_LONGEST_ANSWER)

    def until(self, end: float) -> str:
        """The text. Raises TimeoutError when it is not there by `end`, Failed when it is endless."""
        self._thread.join(max(0.0, end - monotonic()))
        if self._thread.is_alive():
            raise TimeoutError
        if len(self._data) == _LONGEST_ANSWER:
            raise Failed(
                f"printed more than {_LONGEST_ANSWER // MIB} MiB: {shown(self._data[:200].decode('utf-8', 'replace'))}"
            )
        return self._data.decode("utf-8", "replace")


def _end(process: Any) -> None:
    """End the tool if it still runs, and what a wrapper script has started."""
    if process.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def lines(text: str) -> list[str]:
    """The lines that say something."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def shown(text: str) -> str:
    """What another program printed, short and on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= LONGEST_SHOWN else line[: LONGEST_SHOWN - 3] + "...")
