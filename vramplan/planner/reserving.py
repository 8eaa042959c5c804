"""The caching allocator's answer for one iteration of a job at one micro-batch."""

from __future__ import annotations

from vramplan.replay.caching.run import Reservation, reserve
from vramplan.replay.models import makes_gradients_in_backward
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.allocator import Settings

GIB = 2**30


def reservation_of(
    setup: Setup, micro: int, settings: Settings, room_bytes: int, workspaces: tuple[int, ...] = ()
) -> Reservation:
    """What a run reserves on a device that has `room_bytes` for the allocator.

    Where more is asked for, the run is played again within the limit: it may come through by giving free segments
    back. Where it does not, the figures are those that it would need, and `failure` says where it ends.
    """
    record = replay(setup, batch=micro, direct=True)
    first = None
    if setup.accumulating and makes_gradients(setup):
        first = replay(setup._replace(accumulating=False), batch=micro, direct=True)
    wanted = reserve(record, micro, settings, None, first, workspaces)
    fraction = settings.memory_fraction or 1.0
    if wanted.reserved_bytes <= int(fraction * room_bytes) and settings.memory_fraction is None:
        return wanted
    limited = reserve(record, micro, settings, max(0, room_bytes), first, workspaces)
    if limited.failure is None:
        return limited
    survives = None
    if not settings.expandable_segments:
        other = settings._replace(expandable_segments=True)
        survives = reserve(record, micro, other, max(0, room_bytes), first, workspaces).failure is None
    return wanted._replace(failure=limited.failure, retries=limited.retries, expandable_survives=survives)


def makes_gradients(setup: Setup) -> bool:
    """Whether the first micro-step of an iteration makes the gradients that later ones find.

    Elsewhere they are buffers that an engine has from the start, or parts of what devices share, which are taken to be
    there from the start.
    """
    owns_all = setup.sharding is None and setup.split is None and makes_gradients_in_backward(setup.model.family)
    return owns_all and not setup.persistent_gradients and not setup.fp32_gradients


def remarks(found: Reservation, room_bytes: int) -> list[str]:
    """What is worth saying of a run beside its figures; `room_bytes` is what the device has for the allocator."""
    said = []
    end = found.failure
    if end is not None:
        free = f"{end.reserved_bytes - end.allocated_bytes >> 20} MiB are free, in pieces of at most"
        said.append(
            f"the simulated run ends in iteration {end.iteration}, {end.phase}, {end.operator}: "
            f"{end.wanted_bytes >> 20} MiB are asked for, {end.allocated_bytes / GIB:.2f} GiB are in use, "
            f"{free} {end.largest_free_bytes >> 20} MiB"
        )
        if found.expandable_survives:
            said.append("with PYTORCH_ALLOC_CONF=expandable_segments:True it comes through")
        elif end.allocated_bytes + end.wanted_bytes <= room_bytes:
            said.append("it dies of fragmentation: what is in use and what is asked for would have room")
    elif found.first_allocated_bytes > found.later_allocated_bytes:
        more = found.first_allocated_bytes - found.later_allocated_bytes
        said.append(f"the first iteration is the worst one: it holds {more / GIB:.2f} GiB more than those after it")
    if found.failure is None and found.retries:
        times = "once" if found.retries == 1 else f"{found.retries} times"
        iterations = f"{found.iterations} iterations"
        said.append(f"the allocator gives all free segments back {times} in {iterations}, which is slow")
    return said
