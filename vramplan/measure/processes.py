"""The processes of jobs: one that begins at once, and some that have imported everything before it is their turn."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from subprocess import CompletedProcess
from typing import Any

Run = Callable[[str, str, Mapping[str, str]], "CompletedProcess[bytes]"]
"""Runs the request of a file to its reply in another, with an environment; gives back how the process ended."""

WAIT = "--wait"
CORES_OF_ONE, MOST = 4, 3
"""Importing PyTorch takes a core, which the job that is timed meanwhile must not lack."""

_MODULE = "vramplan.measure.child"
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def at_once(asked: str, answered: str, environment: Mapping[str, str]) -> CompletedProcess[bytes]:
    """A process that begins now."""
    words = [sys.executable, "-m", _MODULE, asked, answered]
    return subprocess.run(words, stdin=subprocess.DEVNULL, **_how(environment), check=False)


class Ahead(contextlib.AbstractContextManager["Ahead"]):
    """Processes that are begun while the job before them runs, as many as the processor has cores for.

    A job with an environment of its own begins at once: PyTorch reads the settings of its allocator as it is imported.
    """

    def __init__(self, most: int | None = None) -> None:
        cores = os.cpu_count() or 1
        self.most = min(cores // CORES_OF_ONE, MOST) if most is None else most
        self._waiting: deque[subprocess.Popen[bytes]] = deque()

    def __call__(self, asked: str, answered: str, environment: Mapping[str, str]) -> CompletedProcess[bytes]:
        """Run a request by the process that has waited longest; at once if there is none."""
        if not self.most or dict(environment) != dict(os.environ):
            return at_once(asked, answered, environment)
        process = self._waiting.popleft() if self._waiting else self._begun()
        while len(self._waiting) < self.most:
            self._waiting.append(self._begun())
        _, said = process.communicate((json.dumps([asked, answered]) + "\n").encode())
        return CompletedProcess(process.args, process.returncode, b"", said)

    def _begun(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", _MODULE, WAIT]
        return subprocess.Popen(words, stdin=subprocess.PIPE, **_how(os.environ))

    def __exit__(self, *_: object) -> None:
        """End those that nobody asked."""
        while self._waiting:
            process = self._waiting.popleft()
            process.kill()
            process.communicate()


def _how(environment: Mapping[str, str]) -> dict[str, Any]:
    said = None if os.environ.get("VRAMPLAN_TRACEBACK") else subprocess.PIPE
    return {"stdout": subprocess.DEVNULL, "stderr": said, "env": {**environment, **_QUIET}}
