"""No file keeps the marks of a merge."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("vramplan", "tests", "docs", "profiles")
SUFFIXES = {".py", ".md", ".yaml", ".json", ".toml"}
MARKS = tuple(mark * 7 + " " for mark in "<>|")  # not written out, or this file would have them


@pytest.mark.contract
def test_no_file_has_the_marks_of_a_merge() -> None:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    scarred = [
        str(path.relative_to(ROOT))
        for path in (*files, ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "pyproject.toml")
        if any(line.startswith(MARKS) for line in path.read_text("utf-8", "replace").splitlines())
    ]
    assert scarred == []
