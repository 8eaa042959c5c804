"""The training programs, one folder each. This file is the registry, and the only place that imports them.

A room that lets programs differ (`job`, `replay`, `planner`, `answers`) has a class whose methods say what happens
without them: the room's default behaviour. A program subclasses it in its own folder, and `behaviour_of` finds it.
Any room may import this file, as it imports nothing of any of them itself.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from vramplan.values.engine import Engine

FOLDERS = {
    "deepspeed": "deepspeed",
    "fms-fsdp": "fms_fsdp",
    "litgpt": "litgpt",
    "llm-foundry": "llm_foundry",
    "llm.c": "llmc",
    "megatron": "megatron",
    "modded-nanogpt": "modded_nanogpt",
    "nanogpt": "nanogpt",
    "pytorch": "pytorch",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "transformers": "transformers",
    "unsloth": "unsloth",
}
"""The programs that come with vramplan, and their folders."""

SHARDED_BY = {"zero1": "deepspeed", "zero2": "deepspeed", "zero3": "deepspeed"}
"""Ways to share states among devices that one program brings and others use."""

ENTRY_POINTS = "vramplan.engines"  # the group in which another package names its own: NAME = "package:ENGINE"

Behaviour = TypeVar("Behaviour")


def names() -> tuple[str, ...]:
    """Every program, those of other packages last."""
    return (*FOLDERS, *sorted(name for name in _entry_points() if name not in FOLDERS))


@lru_cache(maxsize=64)
def engine_of(name: str) -> Engine:
    """The program of a name. Raises LookupError if nobody registered it."""
    if name in FOLDERS:
        found: Engine = import_module(f"vramplan.engines.{FOLDERS[name]}").ENGINE
        return found
    entry = _entry_points().get(name)
    if entry is None:
        raise LookupError(f"no engine is registered as {name}")
    found = entry.load()
    return found


def behaviour_of(name: str, room: str, default: Behaviour) -> Behaviour:
    """How a program behaves in a room; `default`, the room's own, where the program does nothing differently."""
    address = engine_of(name).behaviour.get(room)
    if address is None:
        return default
    module, _, value = address.partition(":")
    found: Behaviour = getattr(import_module(module), value)
    return found


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # it reads the metadata of every package that is installed

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
