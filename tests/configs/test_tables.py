"""Tables of keys: what a pattern holds, and that each key stands in one column."""

from __future__ import annotations

import pytest

from vramplan.configs.registry import MODULES, program_of
from vramplan.configs.table import Table


@pytest.mark.parametrize("name", MODULES)
def test_each_key_is_in_one_column(name: str) -> None:
    table = program_of(name).table
    assert not table.understood & table.without_effect
    assert not table.understood & set(table.unmodelled)
    assert not table.without_effect & set(table.unmodelled)


@pytest.mark.parametrize("name", MODULES)
def test_a_release_has_a_date_and_a_source(name: str) -> None:
    for release in program_of(name).releases:
        assert len(release.date.split("-")) == 3
        assert "/" in release.source
        for key in release.defaults:
            assert program_of(name).table.class_of(key) == "understood", key


def test_the_most_exact_pattern_counts() -> None:
    table = Table(frozenset({"a.b"}), frozenset({"a.*", "log_*"}), {"a.c.*": "more", "fp8_*": "details"})
    assert table.class_of("a.b") == "understood"
    assert table.class_of("a.x") == "without_effect"
    assert table.class_of("a.c.d") == "unmodelled"
    assert table.class_of("log_level") == "without_effect"
    assert table.class_of("other") is None


def test_a_slip_in_an_understood_key_is_no_detail_of_something_else() -> None:
    table = Table(frozenset({"fp8_format_of_weights"}), frozenset(), {"fp8_*": "details"})
    assert table.class_of("fp8_fromat_of_weights") is None
    assert table.class_of("fp8_margin") == "unmodelled"
