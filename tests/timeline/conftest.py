from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.timeline.examples import EXAMPLES


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "drawing" in metafunc.fixturenames:
        metafunc.parametrize("drawing", EXAMPLES.values(), ids=EXAMPLES)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Set VRAMPLAN_UPDATE_GOLDEN=1 to write what is printed now; read the difference before you commit it."""
    folder = Path(__file__).parent / "golden"

    def compare(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("VRAMPLAN_UPDATE_GOLDEN"):
            folder.mkdir(exist_ok=True)
            path.write_bytes(text.encode("utf-8"))
        assert text == path.read_bytes().decode("utf-8")

    return compare
