"""The caching allocator's answer for one iteration of a job at one micro-batch."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property

from vramplan.replay.caching.allocator import Exceeded
from vramplan.replay.caching.course import Records
from vramplan.replay.caching.reservation import Reservation
from vramplan.replay.caching.run import SimulatedRun
from vramplan.replay.models import makes_gradients_in_backward
from vramplan.replay.setup import Setup
from vramplan.replay.step import earlier_of, replay, stands_for
from vramplan.values.allocator import UNLIMITED, Settings
from vramplan.values.parallel import DDP

GIB = 2**30

MOST_WAITING = 2  # runs of a few megabytes: a search comes back to one of the last that it looked at

SHARES = (0.5, 0.25, 0.75, 0.5, 0.875, 0.75, 0.9375, 0.25, 0.96875, 0.5)
"""Lengths of batches that are padded to their longest sample, before one of the whole length.

Of n batches with lengths in any order ln n + 0.6 are longer than all before them, six of two hundred, and each halves
what is left to the longest; shorter ones come between, of lengths that were there before, as each takes a replay.
"""


def lengths_of(setup: Setup) -> tuple[int, ...]:
    """Tokens of the batches that come before one of the whole length, where lengths vary."""
    return tuple(max(1, int(setup.sequence_length * share)) for share in SHARES)


class Simulation:
    """One run of a job at one micro-batch on a device that has `room_bytes` for the allocator.

    Each part is played when it is asked for, and once: a search asks only whether the run comes through, and whether
    other settings would help is asked of the answer alone. `records` gives what `records_of` does, of each length, the
    whole one last. `unmet` has, by
    settings, what was reserved where no limit was met: a larger device makes no difference to it. `waiting` has the
    last runs that reserve more than was of use, which go on from there if they are asked again.
    """

    def __init__(
        self,
        micro: int,
        settings: Settings,
        room_bytes: int,
        workspaces: tuple[int, ...],
        is_turned: bool,
        records: Callable[[], tuple[Records, ...]],
        unmet: dict[Settings, Reservation],
        waiting: OrderedDict[Simulation, SimulatedRun],
    ) -> None:
        self.micro, self.settings, self.workspaces, self.is_turned = micro, settings, workspaces, is_turned
        self.limit_bytes = max(0, room_bytes)
        self.records, self.unmet = records, unmet
        self.waiting = waiting
        self._on_this_device: Reservation | None = None

    def exceeds(self, most_bytes: int) -> bool:
        """Whether the run reserves more than that. One that does waits there, and goes on if more is asked of it."""
        try:
            return self._limited(most_bytes).reserved_bytes > most_bytes
        except Exceeded:
            return True

    @property
    def asks_for_more(self) -> bool:
        """Whether the run fails because it needs more than there is, at whatever it would reserve elsewhere.

        Until a run meets the limit it is the run without one, so the other one reserves more than the limit there. A
        part of the device that the process gives itself (`memory_fraction`) is a lower limit, which says nothing.
        """
        return self.settings.memory_fraction is None and self._limited().failure is not None

    @cached_property
    def reservation(self) -> Reservation:
        """What the run reserves; `expandable_survives` is left out.

        It may come through by giving free segments back. Where it does not, the figures are those that it would need,
        and `failure` says where it ends.
        """
        limited = self._limited()
        if limited.failure is None:
            return limited
        wanted = self._played(self.settings, None)
        return wanted._replace(failure=limited.failure, retries=limited.retries)

    @property
    def lasts(self) -> bool:
        """Whether the run comes through, and gives nothing back any more when it has found its course."""
        found = self._limited()
        return found.failure is None and not found.last_retries

    @cached_property
    def reported(self) -> Reservation:
        """The same with `expandable_survives`."""
        found = self.reservation
        if found.failure is None or self.settings.expandable_segments:
            return found
        other = self._played(self.settings._replace(expandable_segments=True), self.limit_bytes)
        return found._replace(expandable_survives=other.failure is None)

    @cached_property
    def expandable(self) -> Reservation:
        """What the run would reserve with expandable segments."""
        return self._played(self.settings._replace(expandable_segments=True), None)

    def _limited(self, most_bytes: int | None = None) -> Reservation:
        """The run on this device. Raises Exceeded as `SimulatedRun.reservation` does."""
        if self._on_this_device is None:
            found = self.unmet.get(self.settings)
            if found is None or not self._has_room_for(found):
                found = self._kept(self.settings, self._run(most_bytes))
            self._on_this_device = found
        return self._on_this_device

    def _has_room_for(self, found: Reservation) -> bool:
        """Whether a run that met no limit is the one on this device."""
        return max(found.reserved_bytes, found.decided_below_bytes) <= self.limit_bytes

    def _run(self, most_bytes: int | None) -> Reservation:
        run = self.waiting.pop(self, None) or self._of_larger() or self._begun(self.settings, self.limit_bytes)
        try:
            return run.reservation(most_bytes)
        except Exceeded:
            self.waiting[self] = run
            if len(self.waiting) > MOST_WAITING:
                self.waiting.popitem(last=False)[1].close()
            raise

    def _of_larger(self) -> SimulatedRun | None:
        """The run of the same on a larger device, which waits: until its request for too much it is also this one."""
        for other, run in self.waiting.items():
            same = other.unmet is self.unmet and other.settings == self.settings
            if same and run.goes_on_with(self.limit_bytes):
                del self.waiting[other]
                return run
        return None

    def _played(self, settings: Settings, limit_bytes: int | None) -> Reservation:
        found = self.unmet.get(settings)
        of_another = found is not None and found.decided_below_bytes > self.limit_bytes
        if found is not None and not of_another and (limit_bytes is None or self._has_room_for(found)):
            return found
        return self._kept(settings, self._begun(settings, limit_bytes).reservation())

    def _begun(self, settings: Settings, limit_bytes: int | None) -> SimulatedRun:
        *others, (record, first) = self.records()
        given = (record, self.micro, settings, limit_bytes, first, self.workspaces, self.is_turned)
        return SimulatedRun(*given, others=others, room_bytes=self.limit_bytes)

    def _kept(self, settings: Settings, found: Reservation) -> Reservation:
        met_none = found.failure is None and not found.retries and settings.max_split_size_bytes == UNLIMITED
        met_none = met_none and found.decided_below_bytes <= self.limit_bytes
        if met_none and settings.memory_fraction is None:  # a limit of its own
            self.unmet[settings] = found
        return found


def records_at(setup: Setup, micro: int, *, varied: bool, shared: bool = False) -> tuple[Records, ...]:
    """Those of each length; `varied`: batches are padded to their longest sample. `shared` as in `records_of`."""
    lengths = (*(lengths_of(setup) if varied else ()), setup.sequence_length)
    setups = {length: setup._replace(sequence_length=length) for length in sorted({*lengths})}
    known = {length: records_of(one, micro, shared=shared) for length, one in setups.items()}
    return tuple(known[length] for length in lengths)


def records_of(setup: Setup, micro: int, *, shared: bool = False) -> Records:
    """An iteration with every block played, and the same of a micro-step before it that is unlike it, if any.

    That is the first, which finds no gradients, or under `no_sync` of FSDP one that reduces none.
    `micro` is what `stands_for` gives; where that is the micro-batch itself, the records are `shared` with others of
    which every size compares as it does there, or of that one alone.
    """
    direct = not shared and stands_for(setup, 3) == 3
    first = None
    earlier = None if setup.sharding is None or setup.sharding.kind == DDP else earlier_of(setup)
    if earlier is not None:
        first = replay(earlier, batch=micro, direct=direct, unrolled=True)
    elif setup.accumulating and makes_gradients(setup):
        first = replay(setup._replace(accumulating=False), batch=micro, direct=direct, unrolled=True)
    return replay(setup, batch=micro, direct=direct, unrolled=True), first


def makes_gradients(setup: Setup) -> bool:
    """Whether the first micro-step of an iteration makes the gradients that later ones find.

    Elsewhere they are buffers that an engine has from the start, or parts of what devices share, which are taken to be
    there from the start.
    """
    owns_all = setup.sharding is None and setup.split is None and makes_gradients_in_backward(setup.model.family)
    return owns_all and not setup.persistent_gradients and not setup.fp32_gradients


def of_varied_lengths(simulation: Simulation) -> str:
    """What lengths that differ from batch to batch leave in the cache, in words."""
    found = simulation.reservation
    least, settings = min(SHARES), simulation.settings
    idle = (found.reserved_bytes - found.allocated_bytes) / GIB
    words = (
        f"with batches of {least:.0%} to 100% of the length the allocator keeps {idle:.1f} GiB more than is in use at "
        "the peak: each batch that is longer than all before it finds no free block"
    )
    if settings.expandable_segments:
        return words
    other = simulation.expandable
    saved = (found.reserved_bytes - other.reserved_bytes) / GIB
    if saved < 0.1:
        return words
    return f"{words}; PYTORCH_ALLOC_CONF=expandable_segments:True saves {saved:.1f} GiB"


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
    if found.failure is None and found.loading_is_worst:
        start, used = found.start_reserved_bytes / GIB, found.allocated_bytes / GIB
        said.append(
            f"loading needs more than a step: {start:.2f} GiB are reserved before the first iteration, and the "
            f"iterations use {used:.2f} GiB at most"
        )
    if found.failure is None and found.retries:
        times = "once" if found.retries == 1 else f"{found.retries} times"
        iterations = f"{found.iterations} iterations"
        cost = "which is slow" if found.last_retries else "and in the last of them no more"
        said.append(f"the allocator gives all free segments back {times} in {iterations}, {cost}")
    return said
