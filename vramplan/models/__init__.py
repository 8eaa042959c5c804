"""One forward pass per family, in the file of the family's name."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def family(name: str) -> Any:
    """The class that builds and runs a family's forward pass: `FORWARD` of `vramplan/models/<name>.py`.

    It is imported when asked for, so that one family does not cost the start-up of the others.
    """
    return import_module(f"vramplan.models.{name}").FORWARD


def no_fused_attention(name: str) -> str | None:
    """Why the family's code cannot call `scaled_dot_product_attention`; None where it can."""
    reason: str | None = getattr(family(name), "no_fused_attention", None)
    return reason


def no_checkpointing(name: str) -> str | None:
    """Why the family's activations cannot be checkpointed; None where they can."""
    reason: str | None = getattr(family(name), "no_checkpointing", None)
    return reason


def is_selective(name: str) -> bool:
    """Whether the family's attention can be recomputed alone and its head have other losses: `selective = True`."""
    return getattr(family(name), "selective", False) is True


def has_equal_blocks(name: str) -> bool:
    """Whether all blocks of the family hold the same shared tensors: without `equal_blocks = False`."""
    return getattr(family(name), "equal_blocks", True) is not False
