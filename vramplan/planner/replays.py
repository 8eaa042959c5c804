"""The memo of replays: what is computed of an iteration depends on its setup alone, so each is played once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

if TYPE_CHECKING:
    from vramplan.planner.alike import AlikeRecords
    from vramplan.planner.reserving import Simulation
    from vramplan.replay.caching.course import Records
    from vramplan.replay.caching.reservation import Reservation
    from vramplan.replay.caching.run import SimulatedRun
    from vramplan.values.allocator import Settings

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

MOST_RECORDS = 24  # of one to two megabytes for a large model; the answer about one job needs about a dozen
MOST_DIRECT = 4  # setups whose records with every block are kept, of a few megabytes for each span of micro-batches
MOST_SIMULATIONS = 64

_open: ContextVar[Replays | None] = ContextVar("replays", default=None)


class Replays:
    """What was replayed, by all that decides it. It keeps the most recently used; it is of one thread at a time."""

    def __init__(self, most_records: int = MOST_RECORDS) -> None:
        self.most_records = most_records
        self.most_direct, self.most_simulations = MOST_DIRECT, MOST_SIMULATIONS
        self._records: OrderedDict[tuple[Setup, int, bool], Record] = OrderedDict()
        self._made: list[tuple[Setup, int, bool]] = []  # keys of records that were made since `begin`
        self._direct: OrderedDict[tuple[Setup, bool], AlikeRecords] = OrderedDict()
        self._simulations: OrderedDict[Hashable, Simulation] = OrderedDict()
        self._unmet: OrderedDict[Hashable, dict[Settings, Reservation]] = OrderedDict()
        self._waiting: OrderedDict[Simulation, SimulatedRun] = OrderedDict()

    def __len__(self) -> int:
        """Records that are kept."""
        return len(self._records)

    def record(self, setup: Setup, batch: int, *, periodic: bool = True) -> Record:
        """`replay(setup, batch=batch, periodic=periodic)`."""
        key = (setup, batch, periodic)

        def made() -> Record:
            self._made.append(key)
            return replay(setup, batch=batch, periodic=periodic)

        return _once(self._records, key, self.most_records, made)

    def begin(self) -> None:
        """What is made from here on may turn out to be of no use."""
        self._made.clear()

    def let_go_first(self) -> None:
        """Records that were made since `begin` are the first to go when there are too many: nobody asks for them again.

        A search looks at many jobs that do not fit, and comes back to those that do.
        """
        for key in self._made:
            if key in self._records:
                self._records.move_to_end(key, last=False)
        self._made.clear()

    def shown(self, setup: Setup, micro: int) -> Record:
        """The same with every event of a micro-batch: where samples are taken one by one, those of each of them."""
        if takes_samples_apart(setup.model.family):
            return replay(setup, batch=micro, direct=True)
        return self.record(setup, min(micro, 2))

    def simulation(
        self,
        setup: Setup,
        micro: int,
        settings: Settings,
        room_bytes: int,
        workspaces: tuple[int, ...],
        is_turned: bool = False,
        *,
        varied: bool = False,
    ) -> Simulation:
        """A run of the same through the caching allocator; `varied`: with batches of other lengths before it."""
        from vramplan.planner.alike import AlikeRecords  # only jobs that simulate the allocator pay for these
        from vramplan.planner.reserving import Simulation

        def records() -> tuple[Records, ...]:
            played = _once(self._direct, (setup, varied), self.most_direct, lambda: AlikeRecords(setup, varied=varied))
            return played.at(micro)

        unmet = _once(
            self._unmet, (setup, micro, workspaces, is_turned, varied), self.most_simulations, dict
        )  # of the run on any device
        key = (setup, micro, settings, room_bytes, workspaces, is_turned, varied)
        return _once(
            self._simulations,
            key,
            self.most_simulations,
            lambda: Simulation(micro, settings, room_bytes, workspaces, is_turned, records, unmet, self._waiting),
        )


def kept() -> Replays:
    """The memo that is open in this thread; where none is, a new one."""
    found = _open.get()
    return Replays() if found is None else found


@contextmanager
def opened(replays: Replays) -> Iterator[None]:
    """Within, in this thread, jobs are judged with `replays` where nothing else is named."""
    token = _open.set(replays)
    try:
        yield
    finally:
        _open.reset(token)


def _once(known: OrderedDict[T, V], key: T, most: int, make: Callable[[], V]) -> V:
    found = known.get(key)
    if found is None:
        found = known[key] = make()
        if len(known) > most:
            known.popitem(last=False)
    else:
        known.move_to_end(key)
    return found
