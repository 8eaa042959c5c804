"""The settings of the caching allocator where the job leaves them to the launcher of its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.allocator import settings_of
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
    devices = raw.data_parallel_size * (1 if raw.split is None else raw.split.devices)
    if devices == 1:
        return None
    key = "allocator"
    if devices > (raw.devices_per_node or DEVICES_PER_NODE) and "allocator_of_several_nodes" in runtime.defaults:
        key = "allocator_of_several_nodes"
    text: str = runtime.defaults[key]
    note = runtime.notes.get(key)
    why = f"the default of the {runtime.name} runtime" + (f": {note}" if note else "")
    resolver.assume("allocator", text, why)
    return settings_of(text)
