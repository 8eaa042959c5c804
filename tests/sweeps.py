"""Sweeps: tests of everything there is, of which everybody runs a part and `--whole` runs all.

A sweep asks one question of every model type, every word of every key, or every example of the pages. Its cases cost
minutes, and what breaks one breaks most often many. Everybody runs one case in so many, the same ones everywhere; of a
sweep that is one test, `@pytest.mark.sweep`, nothing. Of a property everybody runs every case, and draws one example
in so many, the first ones; examples that are kept above a test are all run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from zlib import crc32

import pytest
from hypothesis import is_hypothesis_test, settings

from tests import extent
from tests.drawing import EXPLORING

MARK = "sweep"


def add_option(parser: pytest.Parser) -> None:
    """`--whole`, which runs every case of every sweep."""
    parser.addoption("--whole", action="store_true", help="run every case of the sweeps, and not a part of them")


def decide(config: pytest.Config) -> None:
    """Note whether this run is of all."""
    extent.decide(whole=_asks_for_all(config))


def left_out(config: pytest.Config, items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The cases of sweeps that this run does without. A test that is asked for by its node id runs whole."""
    if _asks_for_all(config):
        return []
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker(MARK) is not None and not _is_property(item):
            cases[item.nodeid.partition("[")[0]].append(item)
    found = []
    for those in cases.values():
        mark = those[0].get_closest_marker(MARK)
        assert mark is not None
        kept = -(-len(those) // mark.args[0]) if mark.args else 0
        found += sorted(those, key=lambda item: crc32(item.nodeid.encode()))[kept:]
    return found


def draw_less(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Draw one example in so many of the properties that are sweeps; all of one that is asked for by its node id."""
    if _asks_for_all(config):
        return
    properties = {item.obj: item for item in items if _is_property(item)}  # type: ignore[attr-defined]
    for test, item in properties.items():
        mark = item.get_closest_marker(MARK)
        if mark is not None:
            whole = test._hypothesis_internal_use_settings
            fewer = -(-whole.max_examples // mark.args[0]) if mark.args else 1
            test._hypothesis_internal_use_settings = settings(whole, max_examples=fewer)


def _asks_for_all(config: pytest.Config) -> bool:
    exploring = config.getoption("--hypothesis-profile", None) == EXPLORING
    return exploring or config.getoption("--whole") or any("::" in str(arg) for arg in config.args)


def _is_property(item: pytest.Item) -> bool:
    return bool(is_hypothesis_test(getattr(item, "obj", None)))
