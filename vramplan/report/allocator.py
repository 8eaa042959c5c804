"""What a simulated caching allocator did, in words."""

from __future__ import annotations

from vramplan.report.numbers import gib_up, text_of
from vramplan.results.allocator import Allocator


def allocator_facts(found: Allocator) -> list[tuple[str, str]]:
    """Names and values, in the order in which they are read."""
    settings = "PyTorch's settings" if found.settings == "simulate" else found.settings
    first, last = _gib(found.first_reserved_bytes), _gib(found.reserved_bytes)
    grows = f"{first} reserved in the first iteration" + (f", {last} in later ones" if last != first else "")
    facts = [("allocator", f"simulated with {settings}: {grows}")]
    if found.held_bytes:
        held, largest = _gib(found.held_bytes), _gib(found.largest_free_bytes)
        facts.append(
            ("fragments", f"{held} are free but in segments partly in use; the largest free block has {largest}")
        )
    return facts


def _gib(size: int) -> str:
    return f"{text_of(gib_up(size))} GiB"
