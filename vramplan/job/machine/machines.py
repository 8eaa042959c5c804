"""The usual machine of a GPU: few jobs leave the device, and only their time depends on it."""

from __future__ import annotations

from vramplan.catalog import platforms
from vramplan.job.resolver import Resolver
from vramplan.values.machine import Gpu


def in_its_machine(resolver: Resolver, gpu: Gpu) -> Gpu:
    """The GPU with the network and the host link of its platform. Raises InputError for a broken profile."""
    known = resolver.catalog.platforms
    kind = gpu.architecture or "", gpu.has_nvlink
    if kind not in known:
        placed = platforms.on_platform(gpu, resolver.catalog.dirs)
        known[kind] = placed.network_bytes_per_s, placed.host_bytes_per_s, placed.link_shares
    network, host, shares = known[kind]
    return gpu._replace(network_bytes_per_s=network, host_bytes_per_s=host, link_shares=shares)
