"""The sources of the program as trees: several tests look at all of them, and to parse them takes seconds."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree(file: Path) -> ast.Module:
    """What a file says. Nobody may change it."""
    return ast.parse(file.read_text("utf-8"))
