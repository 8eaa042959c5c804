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

OWNERS = {
    **dict.fromkeys(("zero1", "zero2", "zero3"), "deepspeed"),
    "modded-muon": "modded-nanogpt",
}
"""Words of jobs whose meaning is the code of one program, and the program: `brings` of its engine has the code."""

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
    found: Behaviour = imported(address)
    return found


@lru_cache(maxsize=128)
def imported(address: str) -> Any:
    """What a text names, `package.module` or `package.module:NAME`; it is imported when it is asked for."""
    module, _, name = address.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


@lru_cache(maxsize=64)
def brought_for(word: str) -> Any:
    """What a program brings for a word of a job, such as a way to share states; None where no program does."""
    if word in OWNERS:
        return imported(engine_of(OWNERS[word]).brings[word])
    others = (engine_of(name) for name in _entry_points())
    address = next((one.brings[word] for one in others if word in one.brings), None)
    return None if address is None else imported(address)


@lru_cache(maxsize=1)
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # it reads the metadata of every package that is installed

    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
