"""Sweeps: tests of everything there is, of which everybody runs a part and `--whole` runs all.

A sweep asks one question of every model type, every word of every key, or every example of the pages. Its cases cost
minutes, and what breaks one breaks most often many. Everybody runs one case in so many, the same ones everywhere; of a
sweep that is one test, `@pytest.mark.sweep`, nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

import pytest

from tests.drawing import EXPLORING

MARK = "sweep"


def add_option(parser: pytest.Parser) -> None:
    """`--whole`, which runs every case of every sweep."""
    parser.addoption("--whole", action="store_true", help="run every case of the sweeps, and not a part of them")


def left_out(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of sweeps that this run does without. A test that is asked for by its node id runs whole."""
    exploring = config.getoption("--hypothesis-profile", None) == EXPLORING
    if exploring or config.getoption("--whole") or any("::" in str(arg) for arg in config.args):
        return []
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    found = []
    for those in cases.values():
        mark = those[0].get_closest_marker(MARK)
        assert mark is not None
        kept = -(-len(those) // mark.args[0]) if mark.args else 0
        found += sorted(those, key=lambda item: crc32(item.nodeid.encode()))[kept:]
    return found
