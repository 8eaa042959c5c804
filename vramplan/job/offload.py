"""States that live on the host: which engine keeps them there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.spec import Sharded

if TYPE_CHECKING:
    from vramplan.job.resolve import Resolver

MODELLED: dict[str, tuple[str, ...]] = {}
"""For each kind of sharding what its engine can keep on the host."""


def check_offload_of_states(resolver: Resolver, words: tuple[str, ...], sharding: Sharded | None) -> None:
    """Refuse what no modelled engine offloads."""
    kind = "none" if sharding is None else sharding.kind
    others = [word for word in words if word not in MODELLED.get(kind, ())]
    if others:
        message = f"{', '.join(others)}: offloading is not modelled with parallel.sharding {kind}"
        resolver.fields.refuse("offload", message, hint="offload: [activations] is modelled without sharding")
