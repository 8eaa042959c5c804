"""Says where a test hangs: the stacks of all threads, after about as long as the whole suite should take.

pytest's own `faulthandler_timeout` begins and ends a thread for each test, which costs a busy machine as much time as
most tests do. This one begins a thread where the last one is some seconds old, and tells a little early.
"""

from __future__ import annotations

import faulthandler
import os
import time

import pytest

SECONDS, RENEWED_AFTER_SECONDS = 240, 20


class Watchdog:
    """A pytest plugin."""

    def __init__(self) -> None:
        self.stderr = os.dup(2)  # that of the process: pytest captures it while a test runs
        self.began: float | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """A test begins."""
        now = time.monotonic()
        if self.began is None or now - self.began > RENEWED_AFTER_SECONDS:
            self.began = now
            faulthandler.dump_traceback_later(SECONDS, file=self.stderr)

    def pytest_unconfigure(self) -> None:
        """The last one is over."""
        faulthandler.cancel_dump_traceback_later()
        os.close(self.stderr)
