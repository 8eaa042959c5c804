"""The time of one collective on a ring or a tree, and of the links that it passes.

Sizes are the bytes of the whole tensor: what all devices have together after an all-gather, what each has before an
all-reduce. Rates are each way.
"""

from __future__ import annotations

from math import ceil, log2

from vramplan.tuples import NamedTuple
from vramplan.values.machine import Gpu, LinkShares

HOP_SECONDS = {True: 3e-6, False: 8e-6}
"""Of each step of a ring or a tree within a machine, and between machines. Assumed: from 1 to 5 and from 5 to 20 µs, a
launch and a message over InfiniBand. The tensors of a step take a thousand times longer.
"""


class Link(NamedTuple):
    """What the devices of a group talk over: bytes per second each way that a collective reaches, and its hops."""

    bytes_per_s: float
    hop_seconds: float


def all_gather_seconds(size: int, devices: int, link: Link) -> float:
    """A ring: every device passes on all parts but one. Of a reduce-scatter too.

    Source: arXiv:1910.02054, section 7; NCCL tests, doc/PERFORMANCE.md.
    """
    if devices < 2:
        return 0.0
    return size * (devices - 1) / devices / link.bytes_per_s + (devices - 1) * link.hop_seconds


def all_reduce_seconds(size: int, devices: int, link: Link) -> float:
    """The quicker of a ring, which is a reduce-scatter and an all-gather, and a double binary tree."""
    if devices < 2:
        return 0.0
    ring = 2 * all_gather_seconds(size, devices, link)
    tree = 2 * size / link.bytes_per_s + 2 * ceil(log2(devices)) * link.hop_seconds
    return min(ring, tree)


def all_to_all_seconds(size: int, devices: int, link: Link) -> float:
    """Every device keeps its own part of `size`, which is what one device has, and sends the rest."""
    return size * (devices - 1) / devices / link.bytes_per_s + link.hop_seconds if devices > 1 else 0.0


def exchange_seconds(size: int, devices: int, near: int, links: tuple[Link, Link], copies: float = 1.0) -> float:
    """The same over several machines: to the `near` devices of its own over the first link, the rest over the second.

    `copies`: of what goes to a machine, how many are the same, of which it gets one and hands it on.
    """
    inside, between = links
    kept = all_to_all_seconds(size * near // devices, near, inside)
    if near >= devices:
        return kept
    return max(kept, size * (devices - near) / devices / copies / between.bytes_per_s + between.hop_seconds)


def copies_of(active: int, machines: int) -> float:
    """Experts of a machine that take a token of which one does, where each of `active` lies on any machine alike."""
    return active / machines / (1 - (1 - 1 / machines) ** active)


def copy_seconds(size: int, gpu: Gpu) -> float:
    """From pinned memory of the host, or to it."""
    return size / (host_bytes_per_s(gpu) * shares_of(gpu).host)


def shares_of(gpu: Gpu) -> LinkShares:
    """What is reached of the links of the GPU's machine."""
    assert gpu.link_shares is not None
    return gpu.link_shares


def host_bytes_per_s(gpu: Gpu) -> float:
    """Each way, between a GPU and its host."""
    link = gpu.link_bytes_per_s
    if link is not None and not gpu.has_nvlink:
        return link / 2
    assert gpu.host_bytes_per_s is not None
    return gpu.host_bytes_per_s


def node_bytes_per_s(gpu: Gpu, given: float | None) -> float:
    """Each way, of the network of a machine."""
    if given is not None:
        return given
    assert gpu.network_bytes_per_s is not None
    return gpu.network_bytes_per_s


def link_of(gpu: Gpu, members: int, stride: int, devices_per_node: int, node_bandwidth: float | None) -> Link:
    """What a group of devices talks over, whose members are `stride` devices apart.

    A ring through several machines passes the network cards of all its members in a machine at once.
    """
    shares = shares_of(gpu)
    if gpu.has_nvlink:
        assert gpu.link_bytes_per_s is not None
        inside = gpu.link_bytes_per_s / 2 * shares.nvlink
        if gpu.link_peers is not None:  # links to devices that are not of the group carry nothing
            together = min(members, max(1, devices_per_node // stride))
            inside *= min(1.0, max(1, together - 1) / gpu.link_peers)
    else:
        inside = host_bytes_per_s(gpu) * shares.pcie
    joined = joined_of(gpu, devices_per_node)
    if members * stride <= joined:
        return Link(inside, HOP_SECONDS[True])
    between = own_card(gpu, devices_per_node, node_bandwidth).bytes_per_s * max(1, joined // stride)
    return Link(min(inside, between), HOP_SECONDS[False])


def joined_of(gpu: Gpu, devices_per_node: int) -> int:
    """Devices that are linked without a network: those of a machine, or of the rack where links join several."""
    return max(devices_per_node, gpu.link_domain or 0)


def own_card(gpu: Gpu, devices_per_node: int, node_bandwidth: float | None) -> Link:
    """A device's part of the network cards of its machine, over which it sends what no ring passes on."""
    between = node_bytes_per_s(gpu, node_bandwidth) / devices_per_node * shares_of(gpu).network
    return Link(between, HOP_SECONDS[False])
