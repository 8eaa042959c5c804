"""A limit to the time that a trace takes: a rig whose devices wait for each other stands still."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

LIMIT_S = 240.0


@contextlib.contextmanager
def limited(seconds: float = LIMIT_S) -> Iterator[None]:
    """Raise TimeoutError in what takes longer, and again each second, as a library may catch the first one."""

    def end(*_: Any) -> None:
        raise TimeoutError(f"ended after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
