"""What the allocator sees where the program is ahead of the device: memory that another stream used is free late.

`record_stream` marks a block, and an event is recorded when it is freed. A later request finds whether the event is
done. The program runs ahead of a busy device until the queue of launches is full, which holds about a thousand kernels.
Every tensor that is made counts as one. A device that waits for its program has done the events at once, and reserves
less. DeepSpeed's stage 3 waits before it reduces a bucket until no more than a few others are on their way.
Source: c10/cuda/CUDACachingAllocator.cpp, DeviceCachingAllocator.free, insert_events and process_events; the CUDA
documentation does not give the length of the queue. https://stackoverflow.com/questions/53970187 measures about 1000
launches for each stream, of which 1024 is the next power of two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from vramplan.replay.played import Requests

QUEUED_LAUNCHES = 1024
ON_THEIR_WAY = 3  # reductions that are behind when the program waits (stage3.py, max_param_reduce_events)


def with_late_ends(
    requests: Requests, awaited: Mapping[int, bool], operators: Sequence[str], waits: Sequence[Sequence[int]] = ()
) -> Requests:
    """The requests, with each end of what is awaited behind as many births as the queue holds launches.

    What is still awaited where the iteration ends is free there: the next one begins with copies of its batch, which
    come when the device is done with the last. `awaited`: whether what ends in forward is late, too. `waits`: of each
    phase the events before which the program waits for the device.
    """
    if not awaited:
        return requests
    late: deque[tuple[int, int]] = deque()
    launched, before = 0, ""
    found: Requests = []
    begun = deque([0] * ON_THEIR_WAY)  # what was launched before each of these reductions
    for number, (name, events) in enumerate(requests):
        course: list[int] = []
        stops = set(waits[number]) if waits else frozenset[int]()
        for at, event in enumerate(events):
            if at in stops:
                begun.append(launched)
                done = begun.popleft() + QUEUED_LAUNCHES
                while late and late[0][0] <= done:
                    course.append(late.popleft()[1])
            if event < 0 and (name != "forward" or awaited.get(~event)) and ~event in awaited:
                late.append((launched + QUEUED_LAUNCHES, event))
                continue
            if event >= 0:
                operator = operators[event] if event < len(operators) else ""
                launched += operator != before
                before = operator
                while late and late[0][0] <= launched:
                    course.append(late.popleft()[1])
            course.append(event)
        found.append((name, course))
    return found
