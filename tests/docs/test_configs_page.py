"""The page of keys is that of the readers."""

from __future__ import annotations

from tests.docs.configs import PAGE, page


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "stale: run python -m tests.docs.configs"
