"""A job of the tiny model, which takes no time."""

from __future__ import annotations

from typing import Any

from tests.cli.running import TINY

KEYS: dict[str, Any] = {
    "model": TINY,
    "gpu": "a100-80gb",
    "sequence_length": 64,
    "micro_batch_size": 2,
    "precision": "amp-bf16",
    "activation_checkpointing": "none",
}
