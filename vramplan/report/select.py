"""`--print KEY`: one value out of a JSON document, for a shell script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
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
        below = (_meant(value, step) or _below(value, step)) if not walked else None
        raise UsageError(f"no key {step!r}{place}", key="--print", hint=below or near_matches(step, keys) or known)
    if isinstance(value, list):
        if step.isascii() and step.isdigit() and int(step) < len(value):
            return value[int(step)]
        hint = f"it has the items 0 to {len(value) - 1}" if value else "it is empty"
        raise UsageError(f"no item {step!r} in the list {where}", key="--print", hint=hint)
    raise UsageError(f"{where} is a single value and has no {step!r}", key="--print", hint=f"print {where}")


MEANT = {
    "peak.device_bytes": ("memory", "vram", "mem", "gib", "gb", "bytes", "used", "total", "device", "peak_memory"),
    "headroom_bytes": ("free", "headroom", "left"),
    "verdict": ("fits", "fit", "result", "status", "answer", "ok"),
    "recommended.micro_batch_size": (
        *("batch_size", "batch", "bs", "mbs", "micro_batch", "max_batch_size", "max_batch"),
        "per_device_train_batch_size",
    ),
    "recommended.gradient_accumulation_steps": ("grad_accum", "accumulation", "gas", "accumulation_steps"),
    "recommended.activation_checkpointing": ("checkpointing", "gradient_checkpointing"),
    "settings": ("plan", "args", "arguments", "config"),
    "time.tokens_per_second": ("throughput", "speed", "tps", "tok_s", "tokens_s"),
    "time.step_seconds": ("step_time", "step", "seconds", "seconds_per_step"),
    "run.cost_usd": ("cost", "price", "usd", "dollars"),
    "run.wall_seconds": ("hours", "days", "duration", "eta"),
}
"""Keys, and what people ask for who mean them."""
_UNIT = re.compile(r"_([gm]i?b|bytes)$")


def _meant(document: Mapping[str, Any], name: str) -> str | None:
    """A hint with the key that is meant, where the document has it."""
    word = name.lower().replace("-", "_")
    bare = _UNIT.sub("", word)
    word = word if bare == word else "memory" if "peak" in bare else bare
    there = {*document, *_paths(document, "")}
    return next((f"did you mean {key}?" for key, words in MEANT.items() if word in words and key in there), None)


def _below(document: Mapping[str, Any], name: str) -> str | None:
    """A hint with the paths that end in a name, or in one near to it; None if none do."""
    paths = list(_paths(document, ""))
    ends = [path.rpartition(".")[2] for path in paths]
    exact = [path for path, end in zip(paths, ends, strict=True) if end == name]
    if not exact:
        near = near_matches(name, dict.fromkeys(ends))
        if near is None or any(key in near for key in document):
            return None
        wanted = near.removeprefix("did you mean ").removesuffix("?").split(" or ")[0]
        exact = [path for path, end in zip(paths, ends, strict=True) if end == wanted]
    return f"did you mean {' or '.join(exact[:3])}?"


def _paths(value: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, inner in value.items():
        if before:
            yield f"{before}{key}"
        if isinstance(inner, Mapping):
            yield from _paths(inner, f"{before}{key}.")
