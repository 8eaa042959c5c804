"""The settings of the caching allocator where the job leaves them to the launcher of its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.job.machine.allocator import is_offer, settings_of
from vramplan.job.machine.software import version_of
from vramplan.options.words import DEVICES_PER_NODE
from vramplan.values.allocator import Settings

if TYPE_CHECKING:
    from vramplan.job.resolver import Resolver
    from vramplan.values.machine import Runtime


def resolve_allocator(resolver: Resolver, runtime: Runtime) -> Settings | None:
    """What the job says, else what the launcher of its runtime does for so many devices; of an offer None."""
    raw = resolver.raw
    if raw.allocator is not None:
        return None if is_offer(raw.allocator) else settings_of(raw.allocator)
    if _devices(resolver) == 1:
        return None
    key, text = _launched(resolver, runtime)
    note = runtime.notes.get(key)
    why = f"the default of the {runtime.name} runtime" + (f": {note}" if note else "")
    resolver.assume("allocator", text, why)
    return settings_of(text)


def offered_allocator(text: str) -> Settings | None:
    """The settings of an offer; None where the text says how the allocator is looked at."""
    return settings_of(text) if is_offer(text) else None


def launched_allocator(resolver: Resolver, runtime: Runtime) -> Settings | None:
    """What the launcher of a runtime that has a default does, or the program itself, on one device too."""
    return settings_of(_launched(resolver, runtime)[1])


def _devices(resolver: Resolver) -> int:
    raw = resolver.raw
    return raw.data_parallel_size * (1 if raw.split is None else raw.split.devices)


def _launched(resolver: Resolver, runtime: Runtime) -> tuple[str, str]:
    """The field of the profile that says it, and its words: by the release of PyTorch, where the job names one."""
    asked = resolver.raw.pytorch_version
    release = None if asked is None else version_of(asked)
    before: tuple[tuple[tuple[int, int], str], ...] = runtime.defaults.get("allocator_before", ())
    older = next((text for since, text in before if release is not None and release < since), None)
    if older is not None:
        return "allocator_before", older
    key = _key(resolver, runtime)
    return key, runtime.defaults[key]


def _key(resolver: Resolver, runtime: Runtime) -> str:
    several = _devices(resolver) > (resolver.raw.devices_per_node or DEVICES_PER_NODE)
    own = "allocator_of_several_nodes"
    return own if several and own in runtime.defaults else "allocator"
