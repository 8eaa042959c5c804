"""The published table is the one that the program gives today."""

from __future__ import annotations

import pytest

from tests.oracle.accuracy import PAGE, page

pytestmark = [pytest.mark.truth, pytest.mark.xdist_group("rows")]


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.oracle.accuracy"
