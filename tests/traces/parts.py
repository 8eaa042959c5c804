"""Rows that no job says: of a stage of a pipeline, for example. Which module traces those of a file, and its format."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

PARTS = {
    "megatron_rows": "mcore",
    "expert_rows": "mcore_experts",
    "capacity_rows": "mcore_experts",
    "context_rows": "mcore_context",
    "titan_context_rows": "titan_parts",
    "titan_pipeline_rows": "titan_stages",
}
"""Which module of this folder traces the rows of each file; its `traced` gives the figures of a row in bytes."""

Part = dict[str, Any]
"""`row` says the form of a model and how devices share it; the rest are figures."""


def parts_of(file: str) -> list[Part]:
    """The rows of a file."""
    from tests.oracle.chosen import path_of

    found: list[Part] = json.loads(path_of(file).read_text("utf-8"))["rows"]
    return found


def figures_of(file: str, part: Part) -> tuple[dict[str, int], dict[str, int]]:
    """The figures of a row as they are recorded, and traced again."""
    recorded = {name: size for name, size in part.items() if name != "row"}
    found: dict[str, int] = import_module(f"tests.traces.{PARTS[file]}").traced(part["row"])
    return recorded, found


def write_parts(file: str, source: str, parts: list[Part]) -> None:
    """A line for each row, below what makes them."""
    from tests.oracle.chosen import path_of

    lines = ",\n".join(json.dumps(one) for one in parts)
    path_of(file).write_text(f'{{"source": {json.dumps(source)}, "rows": [\n{lines}\n]}}\n', "utf-8")
