"""Strategies whose checkpoints depend on sizes: where they are for one schedule, and the largest micro-batch."""

from __future__ import annotations

from vramplan.planner.accumulation import LARGEST_MICRO_BATCH, Schedule
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL, STRATEGIES, spelled
from vramplan.planner.composed import ComposedSizes
from vramplan.planner.judge import Judge, last_that_holds
from vramplan.planner.optimal import Sizes, is_possible, least_recomputation, smallest_peak
from vramplan.planner.probes import ProbedSizes
from vramplan.planner.subjects import subjects_of
from vramplan.replay.models import block_kinds, blocks_are_alike, holds_outputs
from vramplan.replay.models.modules import Segment
from vramplan.replay.optimizers import gradients_wait
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.tuples import NamedTuple


class Placed(NamedTuple):
    """A strategy at one schedule."""

    placement: str  # a strategy that says by itself where the checkpoints are
    peak: Footprint
    verdict: str


def place(judge: Judge, strategy: str, schedule: Schedule) -> Placed:
    """Where the checkpoints of a strategy are at a schedule, and what comes of it."""
    placement = strategy
    if strategy == OPTIMAL:
        sizes = sizes_at(judge, schedule.micro_batch_size, schedule.accumulates)
        # within the limit the least recomputation; where nothing fits for certain, the best chance
        found = least_recomputation(sizes, judge.limits.high)
        placement = spelled(smallest_peak(sizes) if found is None else found)
    peak = judge.footprint(placement, schedule)
    return Placed(placement, peak, judge.verdict_at(placement, schedule, peak))


def sizes_at(judge: Judge, micro: int, accumulates: bool) -> Sizes:
    """What the pieces of the job's model need at a micro-batch."""
    one = micro == 1
    setup = judge.setup("none", accumulates)
    shape = setup.model

    def played(short: Setup) -> Record:
        key = (short.model.layers, short.segments, accumulates, one)
        found = judge.probes.get(key)
        if found is None:
            found = judge.probes[key] = judge.replays.record(short, 1 if one else 2)
        return found

    whole = judge.record("none", accumulates, one)
    waits = gradients_wait(setup.optimizer)
    if not blocks_are_alike(shape, setup.sequence_length, setup.attention):
        return ComposedSizes(*subjects_of(setup, played), whole, micro, waits=waits)

    def record(segments: tuple[Segment, ...]) -> Record:
        blocks = sum(segment.times * segment.blocks for segment in segments)
        return played(setup._replace(model=shape._replace(layers=blocks), segments=segments))

    holds = holds_outputs(shape.family)
    slow, kinds = setup.sharding is not None, block_kinds(shape)
    return ProbedSizes(record, whole, kinds, micro, holds_outputs=holds, waits=waits, seen=judge.seen, slow=slow)


def largest_micro_batch(judge: Judge, accumulates: bool, limit_bytes: int) -> int:
    """The largest micro-batch at which some placement is within the limit; 0 if none is."""

    def possible(micro: int) -> bool:
        return is_possible(sizes_at(judge, micro, accumulates), limit_bytes)

    low = max(judge.largest_micro_batch(strategy, accumulates, limit_bytes) for strategy in STRATEGIES)
    if not low and not possible(1):
        return 0
    return last_that_holds(possible, max(low, 1), LARGEST_MICRO_BATCH)


def fits(judge: Judge, schedule: Schedule, limit_bytes: int) -> bool:
    """Whether some placement is within the limit at a schedule."""
    return is_possible(sizes_at(judge, schedule.micro_batch_size, schedule.accumulates), limit_bytes)
