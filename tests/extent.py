"""Whether this run is of everything, or of the part that everybody runs: asked by what has no pytest, too, as rigs."""

from __future__ import annotations

_whole = False


def decide(*, whole: bool) -> None:
    """Note it, for tests that take a part of something by themselves."""
    global _whole
    _whole = whole


def runs_whole() -> bool:
    """Whether everything is asked for."""
    return _whole
