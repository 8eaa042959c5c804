"""Strategies whose checkpoints depend on sizes: where they are for one schedule, and the largest micro-batch."""

from __future__ import annotations

from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, Schedule
from vramplan.planner.behaviour import is_replicated
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL, STRATEGIES, spelled
from vramplan.planner.judge import Judge, last_that_holds
from vramplan.planner.placement.composed import ComposedSizes
from vramplan.planner.placement.optimal import (
    Placement,
    PlacementSizes,
    is_possible,
    least_recomputation,
    peak_bytes,
    recomputed_flops,
    smallest_peak,
)
from vramplan.planner.placement.probes import ProbedSizes
from vramplan.planner.placement.subjects import subjects_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.models.parts import block_kinds, blocks_are_alike, holds_outputs
from vramplan.replay.optimizers import gradients_wait
from vramplan.replay.placed import checkpoint_ranges_in
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.tuples import NamedTuple

MOST_PROPOSALS = 4  # of a search whose pieces do not add up
CLOSE = 20  # one part in so many of the limit may be left free by the last of them


class Placed(NamedTuple):
    """A strategy at one schedule."""

    placement: str  # a strategy that says by itself where the checkpoints are
    peak: Footprint
    verdict: str


def place(judge: Judge, strategy: str, schedule: Schedule) -> Placed:
    """Where the checkpoints of a strategy are at a schedule, and what comes of it."""
    placement = strategy
    if strategy == OPTIMAL:
        search = PlacementSearch(judge, schedule.micro_batch_size, schedule.accumulates)
        # within the limit the least recomputation; where nothing fits for certain, the best chance
        found = search.least_certain()
        placement = spelled(search.smallest_peak() if found is None else found)
    peak = judge.footprint(placement, schedule)
    return Placed(placement, peak, judge.verdict_at(placement, schedule, peak))


class TriedPlacement(NamedTuple):
    """What the replay of a placement showed."""

    peak_bytes: int
    recomputed_flops: int


class PlacementSearch:
    """The search for a placement at a micro-batch, by the sizes of pieces.

    Devices that share what they hold gather it ahead, keep it until a bound of theirs is met, and fill buckets that
    know of no block. A block that hands its keys to later ones keeps what its whole checkpoint has saved, and
    checkpoints hold what is made for each block before the first in another way. What a piece adds depends on its
    place then, so pieces propose, and the replay of each proposal gives its peak: the next one is looked for below, or
    above, a limit that is as far from the first as the peak was. What is found so is within the limit for certain, and
    the least of what was tried.
    """

    def __init__(self, judge: Judge, micro: int, accumulates: bool) -> None:
        self.judge, self.micro, self.accumulates = judge, micro, accumulates
        self.sizes = sizes_at(judge, micro, accumulates)
        shape = judge.job.model
        self.adds_up = not (shares(judge) or shape.key_value_sharing_layers or shape.layer_input_size)
        self._tried: dict[Placement, TriedPlacement] = {}

    def certain_bytes(self, *, again: bool) -> int:
        """The most that the allocator may have to hold, so that the job fits for certain.

        `again`: with checkpoints, whatever is made again between them; without it of the empty placement alone.
        """
        return self.judge.certain_bytes("none", self.micro, self.accumulates, again=again)

    def least_certain(self) -> Placement | None:
        """The placement that fits for certain and recomputes least; None if none does."""
        if self.peak_bytes(()) <= self.certain_bytes(again=False):
            return ()
        return self.least_recomputation(self.certain_bytes(again=True))

    def peak_bytes(self, placement: Placement) -> int:
        """The peak of allocated bytes, which is that of its replay."""
        return peak_bytes(self.sizes, placement) if self.adds_up else self._replayed(placement).peak_bytes

    def recomputed_flops(self, placement: Placement) -> int:
        """Operations of forward that it does twice."""
        return recomputed_flops(self.sizes, placement) if self.adds_up else self._replayed(placement).recomputed_flops

    def _replayed(self, placement: Placement) -> TriedPlacement:
        found = self._tried.get(placement)
        if found is None:
            record = self.judge.record_at(spelled(placement), self.micro, self.accumulates)
            found = self._tried[placement] = TriedPlacement(record.peak_bytes(self.micro), record.flops["recompute"])
        return found

    def least_recomputation(self, limit_bytes: int) -> Placement | None:
        """The placement within the limit that recomputes least; None if none is."""
        if self.adds_up:
            return least_recomputation(self.sizes, limit_bytes)
        if self.peak_bytes(()) <= limit_bytes:
            return ()
        aim = limit_bytes
        for _ in range(MOST_PROPOSALS):
            proposal = least_recomputation(self.sizes, aim)
            if proposal is None:
                proposal = smallest_peak(self.sizes)
            known = proposal in self._tried
            room = limit_bytes - self.peak_bytes(proposal)
            if known or 0 <= room * CLOSE <= limit_bytes:
                break
            aim += room
        for strategy in STRATEGIES[1:]:
            self._replayed(checkpoint_ranges_in(strategy, self.judge.job.model.stacks))
        within = [one for one, tried in self._tried.items() if tried.peak_bytes <= limit_bytes]
        return min(within, key=lambda one: self._tried[one][::-1], default=None)

    def smallest_peak(self) -> Placement:
        """The placement with the smallest peak, of these the one that recomputes least."""
        proposal = smallest_peak(self.sizes)
        if self.adds_up:
            return proposal
        self._replayed(proposal)
        return min(self._tried, key=lambda one: self._tried[one])

    def is_possible(self, limit_bytes: int, *, certain: bool = False) -> bool:
        """Whether a placement is within the limit, and with `certain` within `certain_bytes`."""
        if certain:
            if self.peak_bytes(()) <= min(limit_bytes, self.certain_bytes(again=False)):
                return True
            limit_bytes = min(limit_bytes, self.certain_bytes(again=True))
        if self.adds_up:
            return is_possible(self.sizes, limit_bytes)
        return self.least_recomputation(limit_bytes) is not None


def shares(judge: Judge) -> bool:
    """Whether devices share what they hold; replicas of it have pieces that add up."""
    return judge.job.sharding is not None and not is_replicated(judge.job)


def sizes_at(judge: Judge, micro: int, accumulates: bool) -> PlacementSizes:
    """What the pieces of the job's model need at a micro-batch."""
    one = micro == 1
    setup = judge.setup("none", accumulates)
    shape = setup.model

    alike = blocks_are_alike(shape, setup.sequence_length, setup.attention)

    def played(short: Setup) -> Record:
        key = (short.model.layers, short.segments, accumulates, one)
        found = judge.probes.get(key)
        if found is None:
            found = judge.probes[key] = judge.replays.record(short, 1 if one else 2, periodic=alike)
        return found

    whole = judge.record("none", accumulates, one)
    waits = gradients_wait(setup.optimizer)
    if not alike:
        return ComposedSizes(*subjects_of(setup, played), whole, micro, waits=waits)

    def record(segments: tuple[Segment, ...]) -> Record:
        blocks = sum(segment.times * segment.blocks for segment in segments)
        return played(setup._replace(model=shape.with_layers(blocks), segments=segments))

    holds = holds_outputs(shape.family)
    slow, kinds = shares(judge), block_kinds(shape)
    return ProbedSizes(record, whole, kinds, micro, holds_outputs=holds, waits=waits, seen=judge.seen, slow=slow)


def largest_micro_batch(judge: Judge, accumulates: bool, limit_bytes: int, *, certain: bool = False) -> int:
    """The largest micro-batch at which some placement is within the limit; 0 if none is.

    With `certain` the job fits for certain with it.
    """

    def possible(micro: int) -> bool:
        return PlacementSearch(judge, micro, accumulates).is_possible(limit_bytes, certain=certain)

    own = (judge.largest_micro_batch(one, accumulates, limit_bytes, certain=certain) for one in STRATEGIES)
    low = max(own)
    if not low and not possible(1):
        return 0
    return last_that_holds(possible, max(low, 1), LARGEST_MICRO_BATCH)


def fits(judge: Judge, schedule: Schedule, limit_bytes: int, *, certain: bool = False) -> bool:
    """Whether some placement is within the limit at a schedule, with `certain` so that the job fits for certain."""
    search = PlacementSearch(judge, schedule.micro_batch_size, schedule.accumulates)
    return search.is_possible(limit_bytes, certain=certain)
