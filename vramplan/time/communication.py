"""The time of one collective on a ring or a tree, and of the links that it passes.

Sizes are the bytes of the whole tensor: what all devices have together after an all-gather, what each has before an
all-reduce. Rates are each way.
"""

from __future__ import annotations

from math import ceil, log2

from vramplan.tuples import NamedTuple
from vramplan.values.machine import Gpu

NVLINK_SHARE = 0.78
"""Of one way of NVLink that a collective reaches: 235 of 300 GB/s on an A100.

Source: stas00/ml-engineering, network/benchmarks, all_reduce_bench on 8 A100 with NVLink 3.
"""
NETWORK_SHARE = 0.75
PCIE_SHARE = 0.75
HOP_SECONDS = {True: 3e-6, False: 8e-6}  # within a machine, between machines


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


def copy_seconds(size: int, gpu: Gpu) -> float:
    """From pinned memory of the host, or to it."""
    return size / (host_bytes_per_s(gpu) * PCIE_SHARE)


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
    if gpu.has_nvlink:
        assert gpu.link_bytes_per_s is not None
        inside = gpu.link_bytes_per_s / 2 * NVLINK_SHARE
    else:
        inside = host_bytes_per_s(gpu) * PCIE_SHARE
    if members * stride <= devices_per_node:
        return Link(inside, HOP_SECONDS[True])
    in_node = max(1, devices_per_node // stride)
    between = node_bytes_per_s(gpu, node_bandwidth) * in_node / devices_per_node * NETWORK_SHARE
    return Link(min(inside, between), HOP_SECONDS[False])
