"""What texts compute of the sums of gradients: seconds of a ring, the network wall, scaling efficiency.

Bandwidths are bytes per second each way. 100 Gbit/s is 12.5 GB/s.
"""

from __future__ import annotations

from vramplan.tuples import NamedTuple


def gradient_bytes(parameters: int, itemsize: int = 2) -> int:
    """Of all gradients, in 16 bits if nothing else is said."""
    return parameters * itemsize


def ring_bytes(size_bytes: float, devices: int | None = None) -> float:
    """What each device sends in a ring all-reduce: 2 (n - 1) / n of the tensor, or twice the tensor for many devices.

    Source: arXiv:1802.05799, after P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    return 2 * size_bytes * (1.0 if devices is None else (devices - 1) / devices)


def ring_seconds(size_bytes: float, bytes_per_s: float, devices: int | None = None) -> float:
    """A ring all-reduce without latency. 14 GB over 100 Gbit/s: 28 GB, 2.24 s."""
    return ring_bytes(size_bytes, devices) / bytes_per_s


class Scaling(NamedTuple):
    """A step of data-parallel devices."""

    compute_seconds: float
    communication_seconds: float
    exposed_seconds: float  # of the communication, that nothing hides
    efficiency: float  # compute over the step


def scaling(compute_seconds: float, communication_seconds: float, hidden_share: float = 0.0) -> Scaling:
    """The step where a share of the communication can run beside computation, and never more than there is of it."""
    hidden = min(hidden_share * communication_seconds, compute_seconds)
    exposed = communication_seconds - hidden
    step = compute_seconds + exposed
    return Scaling(compute_seconds, communication_seconds, exposed, compute_seconds / step)


def network_wall_bytes_per_s(size_bytes: float, compute_seconds: float, devices: int | None = None) -> float:
    """The bandwidth below which a ring all-reduce takes longer than the computation it could hide behind."""
    return ring_bytes(size_bytes, devices) / compute_seconds


def accumulated_share(steps: int) -> float:
    """Of the communication, what is left where only the last of so many micro-steps synchronises: 1 / k."""
    return 1 / steps


def bubble_share(stages: int, micro_batches: int, virtual: int = 1) -> float:
    """Idle time of a pipeline over its work: (p - 1) / (v m). Source: arXiv:2104.04473, sections 2.2.1 and 2.2.2."""
    return (stages - 1) / (virtual * micro_batches)
