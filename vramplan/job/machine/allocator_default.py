"""The settings of the caching allocator where the job leaves them to the launcher of its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.machine.allocator import settings_of
from vramplan.options.words import DEVICES_PER_NODE
from vramplan.values.allocator import Settings

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime


def resolve_allocator(resolver: Resolver, runtime: Runtime) -> Settings | None:
    """What the job says, else what the launcher of its runtime does for so many devices."""
    raw = resolver.raw
    if raw.allocator is not None:
        return settings_of(raw.allocator)
    if _devices(resolver) == 1:
        return None
    key = _key(resolver, runtime)
    text: str = runtime.defaults[key]
    note = runtime.notes.get(key)
    why = f"the default of the {runtime.name} runtime" + (f": {note}" if note else "")
    resolver.assume("allocator", text, why)
    return settings_of(text)


def launched_allocator(resolver: Resolver, runtime: Runtime) -> Settings | None:
    """What the launcher of a runtime that has a default does for so many devices, one of them too."""
    return settings_of(runtime.defaults[_key(resolver, runtime)])


def _devices(resolver: Resolver) -> int:
    raw = resolver.raw
    return raw.data_parallel_size * (1 if raw.split is None else raw.split.devices)


def _key(resolver: Resolver, runtime: Runtime) -> str:
    several = _devices(resolver) > (resolver.raw.devices_per_node or DEVICES_PER_NODE)
    own = "allocator_of_several_nodes"
    return own if several and own in runtime.defaults else "allocator"
