"""Whether a schedule fits in the memory of the host, where something is offloaded."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.replay.host import host_of
from vramplan.replay.record import Record
from vramplan.values.job import ResolvedJob


def is_within(record: Record, job: ResolvedJob, micro: int) -> bool:
    """Whether the node's memory holds what its devices keep there, and the engine has buffers enough.

    `record` is that of the iteration which is valid at the micro-batch.
    """
    if not record.host and record.host_states is None:
        return True
    if record.host_states is not None and record.host_states.stops:
        return False
    given = job.host_memory_bytes
    return given is None or host_of(record, job, micro, None).node_bytes <= given


def largest_within(holds: Callable[[int], bool], most: int) -> int:
    """The largest micro-batch of at most `most` that the host `holds`, which keeps more of a larger one; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
