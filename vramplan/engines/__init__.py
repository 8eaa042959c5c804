"""The training programs, one folder each. This file is the registry, and the only place that imports them.

A room that lets programs differ (`job`, `replay`, `planner`, `answers`) has a class whose methods say what happens
without them: the room's default behaviour. A program subclasses it in its own folder, and `behaviour_of` finds it.
Any room may import this file, as it imports nothing of any of them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from vramplan.errors import InputError, Problem
from vramplan.values.engine import Engine
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import is_fsdp

FOLDERS = {
    "transformers": "transformers",
    "pytorch": "pytorch",
    "megatron": "megatron",
    "deepspeed": "deepspeed",
    "torchtitan": "torchtitan",
    "torchtune": "torchtune",
    "litgpt": "litgpt",
    "nanogpt": "nanogpt",
    "llm-foundry": "llm_foundry",
    "fms-fsdp": "fms_fsdp",
    "unsloth": "unsloth",
    "llm.c": "llmc",
    "modded-nanogpt": "modded_nanogpt",
}
"""The programs that come with vramplan, in the order in which they are listed, and their folders."""

OWNERS = {
    **dict.fromkeys(("zero0", "zero1", "zero2", "zero3"), "deepspeed"),
    "modded-muon": "modded-nanogpt",
}
"""Words of jobs whose meaning is the code of one program, and the program: `brings` of its engine has the code."""

ENTRY_POINTS = "vramplan.engines"  # the group in which another package names its own: NAME = "package:ENGINE"

Behaviour = TypeVar("Behaviour")


OF_SHARDINGS = dict.fromkeys(("zero1", "zero2", "zero3"), "deepspeed")
"""Words of `parallel.sharding` that a program brings to the loops of others, and which program that is."""


def names() -> tuple[str, ...]:
    """Every program, those of other packages last."""
    return (*FOLDERS, *of_packages())


def of_packages() -> tuple[str, ...]:
    """The programs that other packages register."""
    return tuple(sorted(name for name in _entry_points() if name not in FOLDERS))


def with_code_of(family: str) -> tuple[str, ...]:
    """The programs that come with vramplan and have code of their own for a family. It imports each: for mistakes."""
    return tuple(name for name in FOLDERS if family in engine_of(name).families)


@lru_cache(maxsize=64)
def engine_of(name: str) -> Engine:
    """The program of a name.

    Raises LookupError if nobody registered it, and InputError if a package did whose code cannot be imported.
    """
    if name in FOLDERS:
        found: Engine = import_module(f"vramplan.engines.{FOLDERS[name]}").ENGINE
        return found
    entry = _entry_points().get(name)
    if entry is None:
        raise LookupError(f"no engine is registered as {name}")
    try:
        found = entry.load()
    except Exception as error:  # whatever the code of a package raises while it is imported
        raise _broken(entry, f"it cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, Engine):
        raise _broken(entry, f"it is no Engine but a value of type {type(found).__name__}")
    if found.name != name:
        raise _broken(entry, f"it is called {found.name}")
    return found


def _broken(entry: Any, why: str) -> InputError:
    package = "a package" if entry.dist is None else f"the package {entry.dist.name}"
    message = f"{package} registers the engine {entry.name} as {entry.value}, but {why}"
    return InputError([Problem(message, "runtime", hint="mend or uninstall the package")])


def behaviour_of(name: str, room: str, default: Behaviour) -> Behaviour:
    """How a program behaves in a room; `default`, the room's own, where the program does nothing differently."""
    address = engine_of(name).behaviour.get(room)
    if address is None:
        return default
    try:
        found: Behaviour = imported(address)
    except Exception as error:
        entry = None if name in FOLDERS else _entry_points().get(name)
        if entry is None:
            raise
        raise _broken(entry, f"{address} cannot be imported: {type(error).__name__}: {error}") from error
    return found


@lru_cache(maxsize=128)
def imported(address: str) -> Any:
    """What a text names, `package.module` or `package.module:NAME`; it is imported when it is asked for."""
    module, _, name = address.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def on_demand(room: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose names are imported when they are asked for.

    `modules` has the names, by the file that has each. It raises AttributeError for what they lack.
    """
    addresses = {name: f"{module}:{name}" for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in addresses:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return imported(addresses[name])

    return get


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


POLICIES = ("fsdp-bf16", "fsdp-fp16")  # with weights that FSDP gathers in 16 bits


def is_in_autocast(job: ResolvedJob) -> bool:
    """Whether the forward pass of the model that trains runs under `torch.autocast`."""
    return job.precision.startswith("amp-") or is_cast_beside_policy(job)


def is_cast_beside_policy(job: ResolvedJob) -> bool:
    """Whether it does so with weights that FSDP1 gathers in 16 bits.

    Accelerate puts autocast around the forward method of a model before it is wrapped by FSDP1, and not for FSDP2.
    Source: accelerate 1.15.0, accelerator.py, prepare_model (native_amp) and _prepare_fsdp2.
    """
    flat = job.sharding is not None and is_fsdp(job.sharding.kind) and job.sharding.version == 1
    return flat and job.precision in POLICIES and engine_of(job.runtime.engine).casts_beside_policy
