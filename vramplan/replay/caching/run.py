"""A few training iterations through the caching allocator: what they reserve, and whether they come through.

Weights come first, in the order of the model, then buffers and inputs; the first optimizer step makes its states
between the blocks that are free at its end, so later iterations may find no block that is large enough and reserve more
than the first. A micro-step that accumulates finds the gradients where the first one of its iteration put them.

Where batches are padded to their longest sample, iterations have lengths of their own: a length that none before has
reached finds no free block for its largest tensors, and what is reserved grows with each such one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain

from vramplan.replay.caching.allocator import MAIN_STREAM, CachingAllocator, Exceeded, NoSegment
from vramplan.replay.caching.blocks import Block
from vramplan.replay.caching.course import REDUCING, Course, Records, with_workspaces
from vramplan.replay.caching.reservation import Failure, Reservation
from vramplan.replay.played import Requests
from vramplan.replay.record import Record
from vramplan.replay.start import Event, Start
from vramplan.values.allocator import DEFAULT, UNLIMITED, Settings

MOST_ITERATIONS = 5  # if each still reserves more than the one before


def reserve(
    record: Record,
    micro_batch_size: int,
    settings: Settings = DEFAULT,
    limit_bytes: int | None = None,
    first: Record | None = None,
    workspaces: tuple[int, ...] = (),
    is_turned: bool = False,
    others: Sequence[Records] = (),
) -> Reservation:
    """Run iterations until none reserves more than all before it.

    `record` plays every block, and is valid for the micro-batch (`replay(..., unrolled=True)`). `first` is the same of
    an earlier micro-step that finds no gradients or reduces none, where the iteration accumulates them; without it
    gradients are there at once.
    `limit_bytes` is what the device can give the allocator; None for as much as it asks for. `workspaces` are those of
    libraries, one of each thread: behind its result the first product of the thread makes it, and it stays.
    `is_turned`: convolutions copy operands and results into another layout. `others`: what `record` and `first` are,
    of iterations with other lengths, which come before, in their order.
    """
    given = (record, micro_batch_size, settings, limit_bytes, first, workspaces, is_turned)
    return SimulatedRun(*given, others=others).reservation()


class SimulatedRun:
    """A run that can be asked first whether it reserves more than something, and goes on from there."""

    def __init__(
        self,
        record: Record,
        micro_batch_size: int,
        settings: Settings,
        limit_bytes: int | None,
        first: Record | None,
        workspaces: tuple[int, ...],
        is_turned: bool = False,
        *,
        waits: bool = True,
        others: Sequence[Records] = (),
        room_bytes: int | None = None,
    ) -> None:
        """The arguments are those of `reserve`; `waits`: what other streams use is free late, if a record says so.

        `room_bytes`: what a program finds that asks the device how much is free; None: `limit_bytes`.
        """
        self.record, self.micro, self.first, self.workspaces = record, micro_batch_size, first, workspaces
        self.allocator = CachingAllocator(settings, limit_bytes)
        self.room_bytes = self.allocator.limit_bytes if room_bytes is None else room_bytes
        self.start_reserved_bytes = 0
        self.iteration = 0
        self.phase = "start"
        self.operator = "weights"
        self.left: dict[str, list[Block]] = {}  # by name, what an iteration leaves to the next
        self.stays: list[int] = []  # requests that are never freed: states that a step makes
        every = (*others, (record, first))
        self.courses = [Course.of(one, micro_batch_size, settings, is_turned=is_turned) for one in every]
        self.at_once: Callable[[], SimulatedRun] | None = None  # the run that waits for what other streams use
        if waits and record.awaited:
            given = (record, micro_batch_size, settings, limit_bytes, first, workspaces, is_turned)
            self.at_once = lambda: SimulatedRun(*given, waits=False, others=others, room_bytes=room_bytes)
            self.courses = [course.awaited for course in self.courses]
        begins = self.courses[0]
        self.kept, self.first_requests = with_workspaces(
            begins.first or begins.record, begins.first_requests, begins.first_sizes, workspaces
        )
        self._course = self._whole()
        self._end: Reservation | None = None

    def reservation(self, most_bytes: int | None = None) -> Reservation:
        """What the run reserves. Raises Exceeded where it reserves more than `most_bytes`; it may be asked again."""
        self.allocator.most_bytes = UNLIMITED if most_bytes is None else most_bytes
        while self._end is None:
            self._end = next(self._course)
            if self._end is None:
                raise Exceeded
            self.close()
        return self._end

    def goes_on_with(self, limit_bytes: int) -> bool:
        """Go on as on a device that gives so much, if until now it could have been one.

        So it is while no request has met a limit, old or new, and nothing was decided by what there is.
        """
        allocator, start = self.allocator, self.record.start
        least = min(limit_bytes, allocator.limit_bytes)
        has_met = bool(allocator.retries) or max(allocator.peak_reserved_bytes, self.start_reserved_bytes) > least
        bounded = not allocator.takes_smallest or allocator.settings.memory_fraction is not None
        decided = start is not None and min(least, self.room_bytes) < start.decided_below_bytes
        if has_met or bounded or decided or self.at_once is not None:
            return False
        allocator.limit_bytes = limit_bytes
        return True

    def close(self) -> None:
        """The run is not asked any more, and what it holds can go at once."""
        self._course.close()
        self.allocator.close()

    def _whole(self) -> Generator[Reservation | None, None, None]:
        """The reservation, and before it None each time that a request would reserve more than is of use."""
        allocator = self.allocator
        first_reserved = first_allocated = retries_before = 0
        failure = None
        try:
            yield from self._unbroken(self._start)
            self.start_reserved_bytes = allocator.peak_reserved_bytes
            allocator.peak_reserved_bytes = allocator.reserved_bytes  # that of the iterations for itself
            lengths = len(self.courses)
            while self.iteration < MOST_ITERATIONS + lengths - 1:
                before, retries_before = allocator.peak_reserved_bytes, allocator.retries
                self.iteration += 1
                yield from self._iterate()
                if self.iteration < lengths:
                    continue
                if self.iteration == lengths:
                    first_reserved, first_allocated = allocator.peak_reserved_bytes, allocator.peak_allocated_bytes
                    allocator.peak_allocated_bytes = allocator.allocated_bytes  # the others for themselves
                elif allocator.peak_reserved_bytes == before and (
                    self.iteration > lengths + 1 or not allocator.retries
                ):
                    break
        except NoSegment as error:
            if self.at_once is not None:
                yield from self._waiting(self.at_once())
                return
            failure = Failure(
                iteration=self.iteration,
                phase=self.phase,
                operator=self.operator,
                wanted_bytes=error.wanted_bytes,
                allocated_bytes=error.allocated_bytes,
                reserved_bytes=error.reserved_bytes,
                largest_free_bytes=error.largest_free_bytes,
            )
        start, of_steps = self.start_reserved_bytes, allocator.peak_reserved_bytes
        yield Reservation(
            reserved_bytes=max(start, of_steps),
            allocated_bytes=max(first_allocated, allocator.peak_allocated_bytes),
            later_allocated_bytes=allocator.peak_allocated_bytes if self.iteration > 1 else 0,
            first_reserved_bytes=max(start, first_reserved or of_steps),
            first_allocated_bytes=first_allocated or allocator.peak_allocated_bytes,
            held_bytes=allocator.held_bytes,
            largest_free_bytes=allocator.largest_free_bytes,
            retries=allocator.retries,
            last_retries=allocator.retries - retries_before,
            iterations=self.iteration,
            failure=failure,
            start_reserved_bytes=start,
            step_reserved_bytes=of_steps,
            decided_below_bytes=0 if self.record.start is None else self.record.start.decided_below_bytes,
        )

    def _waiting(self, other: SimulatedRun) -> Generator[Reservation | None, None, None]:
        """Where there is no segment, the allocator waits for other streams before it gives what is free back.

        From there on what they use is taken to be free at once.
        Source: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks, synchronize_and_free_events.
        """
        other.allocator.most_bytes = self.allocator.most_bytes
        self.allocator.close()
        self.allocator = other.allocator
        for found in other._course:
            yield found if found is None else found._replace(retries=found.retries + 1)

    def _unbroken(self, act: Callable[[], None]) -> Iterator[None]:
        """What is done at once; whether it reserves too much is looked at behind it."""
        allocator = self.allocator
        most, allocator.most_bytes = allocator.most_bytes, UNLIMITED
        act()
        allocator.most_bytes = most
        if allocator.peak_reserved_bytes > most:
            yield

    def _start(self) -> None:
        """Weights one by one where they are known, the rest of them as one block, and what lives beside them.

        A weight that is quantized on the device is there in 16 bits first, and one that is sharded is there whole where
        its program does not read shards. The segments of that stay, and are reserved from then on
        (`reset_peak_memory_stats` sets the peak to what is reserved); what was allocated is not counted.
        """
        allocator, record = self.allocator, self.record
        if record.start is None:
            self._load()
        else:
            self._begin(record.start)
        for size in self.workspaces[len(self.kept) :]:  # of a thread that multiplies by another library
            allocator.malloc(size)
        whole = sum(state.at(self.micro) for state in record.states if state.category == "optimizer")
        others = whole - sum(sum(sizes) for sizes in record.state_bytes)
        if record.state_bytes and others > 0:  # what all parameters share
            allocator.malloc(others)
        allocator.peak_allocated_bytes = allocator.allocated_bytes

    def _load(self) -> None:
        """One weight after the other, and what lives beside them."""
        allocator, record = self.allocator, self.record
        sources = record.load_bytes or ((),) * len(record.weight_bytes)
        for size, before in zip(record.weight_bytes, sources, strict=True):
            loaded = [allocator.malloc(one) for one in before]
            for block in loaded[:-1]:
                allocator.free(block)
            if size:  # what optimizers step may be several views of one shard
                allocator.malloc(size)
            for block in loaded[-1:]:
                allocator.free(block)
        weights = sum(state.at(self.micro) for state in record.states if state.category == "weights")
        if record.weight_bytes and weights > sum(record.weight_bytes):  # of a flat buffer only a part is stepped
            allocator.malloc(weights - sum(record.weight_bytes))
        for state in record.states:
            made_later = state.category == "optimizer" and record.state_bytes
            known = state.category == "weights" and record.weight_bytes
            if made_later or known or (state.category == "gradients" and self.first is not None):
                continue
            stream = REDUCING if state.category == "gradients" and record.elsewhere else MAIN_STREAM
            for _ in range(state.copies):
                size = state.at(self.micro) // state.copies
                if size:
                    allocator.malloc(size, stream)

    def _begin(self, start: Start) -> None:
        """What the program says that it does, and what lives beside that."""
        allocator, record = self.allocator, self.record
        blocks: dict[int, Block] = {}
        if start.room is not None and (size := start.room.within(self.room_bytes)):
            allocator.free(allocator.malloc(size))
        events = start.if_short if self.room_bytes < start.needed_bytes else start.events
        rounded = allocator.settings.rounded
        sizes, before = [rounded(size) for size in start.sizes], 0
        for place in [at for at, event in enumerate(events) if event is None]:
            allocator.play(_numbers(events[before:place]), sizes, {}, blocks)
            allocator.empty_cache()
            before = place + 1
        allocator.play(_numbers(events[before:]), sizes, {}, blocks)
        made = sum(start.sizes[number] for number in blocks)
        for state in record.states:
            if state.category == "optimizer" and record.state_bytes:
                continue
            if state.category == "gradients" and self.first is not None:
                continue
            for _ in range(state.copies):
                size = state.at(self.micro) // state.copies
                known = min(size, made)
                made -= known
                if size > known:
                    allocator.malloc(size - known)

    def _make_states(self) -> None:
        self.operator = "states"
        for each in self.record.state_bytes:
            for size in each:
                self.allocator.malloc(size)

    def _with_states(self, events: list[int], sizes: list[int]) -> list[int]:
        """The events of a step, and behind the flat gradient of each group the states that it makes of that."""
        record = self.record
        made = dict(zip(record.stated_behind, record.state_bytes, strict=False))
        found: list[int] = []
        for event in events:
            found.append(event)
            for size in made.get(event, ()):
                self.stays.append(len(sizes))
                found.append(len(sizes))
                sizes.append(self.allocator.settings.rounded(size))
        return found

    def _iterate(self) -> Iterator[None]:
        """One iteration; behind those of all lengths come more of the longest."""
        course = self.courses[min(self.iteration, len(self.courses)) - 1]
        gradients: list[Block] = []
        makes_states = self.iteration == 1
        begins = self.first_requests if makes_states else course.first_requests
        if course.first is not None:
            gradients = yield from self._play(
                course.first, begins, course.first_sizes, course.first_streams, until="step"
            )
            begins = course.requests
        rest = yield from self._play(course.record, begins, course.sizes, course.streams, makes_states=makes_states)
        for block in (*rest, *gradients):
            self.allocator.free(block)

    def _play(
        self,
        record: Record,
        requests: Requests,
        sizes: list[int],
        streams: dict[int, str],
        *,
        until: str | None = None,
        makes_states: bool = False,
    ) -> Generator[None, None, list[Block]]:
        """Births and deaths in their order, up to a phase; the blocks that are left."""
        alive: dict[int, Block] = {}
        free, pop = self.allocator.free, alive.pop
        before = {one.stand_in: one.name for one in record.carried}
        leaves = record.leaves()
        left: dict[str, list[Block]] = {one.name: [] for one in record.carried}
        apart = {*before, *(~one for one in before), *(~one for one in leaves)}
        for name, events in requests:
            if name == until:
                break
            self.phase = name
            if name == "step" and makes_states:
                if record.stated_behind:
                    events = self._with_states(events, sizes)
                else:
                    yield from self._unbroken(self._make_states)
            try:
                for part in _parts(events, apart):
                    event = part[0]
                    if event not in apart:
                        yield from self._serve(part, sizes, streams, alive)
                    elif event < 0 and ~event in before:
                        what = before[~event]
                        for block in self.left.get(what, ()):
                            free(block)
                        self.left[what] = left[what]
                    elif event < 0:
                        left[leaves[~event]].append(pop(~event))
            except NoSegment:
                born = self.allocator.asked
                self.operator = record.operators[born] if born < len(record.operators) else "workspace"
                if born in self.stays:
                    self.operator = "states"
                raise
        if requests is self.first_requests:
            for one in self.kept:
                alive.pop(one, None)
        for one in self.stays:
            alive.pop(one, None)
        for one, what in leaves.items():
            if one in alive:
                left[what].append(alive.pop(one))
        return list(alive.values())

    def _serve(
        self, events: list[int], sizes: list[int], streams: dict[int, str], alive: dict[int, Block]
    ) -> Iterator[None]:
        course: Iterator[int] = iter(events)
        while True:
            try:
                self.allocator.play(course, sizes, streams, alive)
            except Exceeded:
                yield
                course = chain((self.allocator.asked,), course)
            else:
                return


def _numbers(events: Iterable[Event]) -> Iterator[int]:
    """Those of requests and of what is freed."""
    return (event for event in events if event is not None)


def _parts(events: list[int], apart: set[int]) -> Iterator[list[int]]:
    """Events in their order, each of those `apart` by itself: of what is there from one iteration to the next."""
    at = 0
    for place in [place for place, event in enumerate(events) if event in apart] if apart else ():
        if at < place:
            yield events[at:place]
        yield events[place : place + 1]
        at = place + 1
    if at < len(events):
        yield events[at:]
