"""`--print KEY`: one value out of a JSON document, for a shell script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vramplan.errors import UsageError, near_matches


def select(document: Mapping[str, Any], path: str) -> str:
    """The value at `path` (dots and indices: `checkpoints.0.first`): a bare scalar, or compact JSON."""
    value: Any = document
    walked: list[str] = []
    for step in path.split("."):
        value = _step(value, step, walked)
        walked.append(step)
    if isinstance(value, str):  # it may have come out of a file, and a terminal obeys some characters
        return "".join(char if char.isprintable() or char in "\n\t" else "?" for char in value)
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _step(value: Any, step: str, walked: list[str]) -> Any:
    where = ".".join(walked)
    if isinstance(value, Mapping):
        if step in value:
            return value[step]
        keys = [str(key) for key in value]
        known = f"known here: {', '.join(keys)}" if keys else "there are no keys here"
        place = f" under {where}" if where else ""
        raise UsageError(f"no key {step!r}{place}", key="--print", hint=near_matches(step, keys) or known)
    if isinstance(value, list):
        if step.isascii() and step.isdigit() and int(step) < len(value):
            return value[int(step)]
        hint = f"it has the items 0 to {len(value) - 1}" if value else "it is empty"
        raise UsageError(f"no item {step!r} in the list {where}", key="--print", hint=hint)
    raise UsageError(f"{where} is a single value and has no {step!r}", key="--print", hint=f"print {where}")
