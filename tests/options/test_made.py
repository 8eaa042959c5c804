"""What is checked in is what the table makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.options.made import COMMAND, DOCS, MADE, ROOT


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_made_file_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == MADE[path](), f"stale: run {COMMAND}"


@pytest.mark.parametrize("name", ["micro_batch_size", "parallel.sharding", "FitResult", "Runtime", "OutOfMemory"])
def test_the_glossary_has_keys_and_types(name: str) -> None:
    assert (DOCS / "glossary.md").read_text("utf-8").count(f"\n| `{name}` | ") == 1
