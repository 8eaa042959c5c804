"""Storages that tell what a device is asked for, one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LEAST_BYTES = 4096  # of what is told


def telling(said: list[int], *, listens: Callable[[], bool] = lambda: True) -> Any:
    """A class of storages that adds to `said` what is made in bytes, and what is freed as negative ones.

    The smallest are left out, and so is what comes while nobody `listens`.
    """
    from vramplan.measure.storages import Storages  # which needs PyTorch

    class Told(Storages):  # type: ignore[misc]
        level = 0

        @property
        def now_bytes(self) -> int:
            return self.level

        @now_bytes.setter
        def now_bytes(self, level: int) -> None:
            if listens() and abs(level - self.level) >= LEAST_BYTES:
                said.append(level - self.level)
            self.level = level

    return Told
