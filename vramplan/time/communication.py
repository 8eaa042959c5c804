"""The time of one collective on a ring or a tree, and of the links that it passes.

Sizes are the bytes of the whole tensor: what all devices have together after an all-gather, what each has before an
all-reduce. Rates are each way.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

from vramplan.values.machine import Gpu

NVLINK_SHARE = 0.78
"""Of one way of NVLink that a collective reaches: 235 of 300 GB/s on an A100.

Source: stas00/ml-engineering, network/benchmarks, all_reduce_bench on 8 A100 with NVLink 3.
"""
NETWORK_SHARE = 0.75
PCIE_SHARE = 0.75
PCIE_MOST = 130e9  # bytes per second both ways; a faster link is NVLink or Infinity Fabric
HOP_SECONDS = {True: 3e-6, False: 8e-6}  # within a machine, between machines

NODE_BYTES_PER_S = {
    # of all network cards of the usual machine, each way: DGX-1 4 x 100 Gbit/s, DGX A100 8 x 200, DGX H100 8 x 400
    "volta": 50e9,
    "ampere": 200e9,
    "hopper": 400e9,
    "blackwell": 400e9,
    "cdna3": 400e9,
}
ETHERNET_BYTES_PER_S = 12.5e9  # 100 Gbit/s, of a machine whose GPUs have no NVLink
HOST_BYTES_PER_S = {"hopper": 63e9, "blackwell": 63e9, "cdna3": 63e9, "ampere": 31.5e9, "ada": 31.5e9}
PCIE3_BYTES_PER_S = 15.75e9


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
    if link is not None and link <= PCIE_MOST:
        return link / 2
    return HOST_BYTES_PER_S.get(gpu.architecture or "", PCIE3_BYTES_PER_S)


def has_nvlink(gpu: Gpu) -> bool:
    """Whether the link of a GPU is faster than any PCIe."""
    return gpu.link_bytes_per_s is not None and gpu.link_bytes_per_s > PCIE_MOST


def node_bytes_per_s(gpu: Gpu, given: float | None) -> float:
    """Each way, of the network of a machine."""
    if given is not None:
        return given
    if not has_nvlink(gpu):
        return ETHERNET_BYTES_PER_S
    return NODE_BYTES_PER_S.get(gpu.architecture or "", ETHERNET_BYTES_PER_S)


def link_of(gpu: Gpu, members: int, stride: int, devices_per_node: int, node_bandwidth: float | None) -> Link:
    """What a group of devices talks over, whose members are `stride` devices apart.

    A ring through several machines passes the network cards of all its members in a machine at once.
    """
    if has_nvlink(gpu):
        assert gpu.link_bytes_per_s is not None
        inside = gpu.link_bytes_per_s / 2 * NVLINK_SHARE
    else:
        inside = host_bytes_per_s(gpu) * PCIE_SHARE
    if members * stride <= devices_per_node:
        return Link(inside, HOP_SECONDS[True])
    in_node = max(1, devices_per_node // stride)
    between = node_bytes_per_s(gpu, node_bandwidth) * in_node / devices_per_node * NETWORK_SHARE
    return Link(min(inside, between), HOP_SECONDS[False])
