from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.architecture.sources import tree


@pytest.fixture(scope="package", autouse=True)
def trees() -> Iterator[None]:
    """They take a quarter of a gigabyte, and nobody else looks at them."""
    yield
    tree.cache_clear()
