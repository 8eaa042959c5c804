"""Whether a schedule fits in the memory of the host, where something is offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.replay.host import host_of

if TYPE_CHECKING:
    from vramplan.planner.judge import Judge


def is_within(judge: Judge, strategy: str, micro: int, accumulates: bool) -> bool:
    """Whether the node's memory holds what its devices keep there, and the engine has buffers enough."""
    record = judge.record_at(strategy, micro, accumulates)
    if not record.host and record.host_states is None:
        return True
    if record.host_states is not None and record.host_states.stops:
        return False
    given = judge.job.host_memory_bytes
    return given is None or host_of(record, judge.job, micro, None).node_bytes <= given


def largest_within(judge: Judge, strategy: str, accumulates: bool, most: int) -> int:
    """The largest micro-batch of at most `most` that the host holds, which keeps more of a larger one; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if is_within(judge, strategy, middle, accumulates):
            low = middle
        else:
            high = middle - 1
    return low
