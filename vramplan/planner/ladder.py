"""The rungs of the ladder of strategies, the rule that chooses among them, and the schedules that fit one."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.planner import on_demand
from vramplan.planner.accumulation import OpenSchedules, Schedule
from vramplan.planner.budget import Footprint
from vramplan.planner.judge import Judge
from vramplan.results import FITS, TIGHT
from vramplan.tuples import NamedTuple

CLEARLY = 1.05
"""How much slower a plan may be than the fastest one and still count as fast.

Rates are off by that much in the median (docs/time.md).
"""
DIVIDED_LOSS_BYTES = 4096  # more than the few scalars that only an accumulating step has


class Rung(NamedTuple):
    """One strategy at its own best schedule."""

    strategy: str
    schedule: Schedule
    peak: Footprint
    verdict: str
    largest_micro_batch_size: int
    placement: str  # the strategy spelled out, where its checkpoints depend on sizes
    recomputed_fraction: float  # extra forward FLOPs over the FLOPs of a step without checkpointing
    is_code: bool = False  # the program has no switch for it: it is some lines of Python


class Choice(NamedTuple):
    """What was chosen, and the whole ladder."""

    rung: Rung
    ladder: tuple[Rung, ...]
    accumulation: OpenSchedules
    chosen_by_time: bool = False  # and not by the least extra compute


def climb(
    accumulation: OpenSchedules,
    ladder: tuple[Rung, ...],
    pinned: str | None,
    usable_bytes: int,
    seconds: Callable[[Rung], float | None],
) -> Choice:
    """The best of what fits; else the smallest peak, which is the likeliest to fit; `pinned`: only that strategy.

    Of tight rungs one with room comes first: its likely figure is within the usable memory, and nothing else is short.
    `seconds` gives the time of a sample.
    """
    open_to_choice = [rung for rung in ladder if pinned is None or rung.strategy == pinned]
    certain = [rung for rung in open_to_choice if rung.verdict == FITS]
    if certain:
        return best_of(certain, ladder, accumulation, seconds)
    likely = [rung for rung in open_to_choice if has_room(rung, usable_bytes)] or open_to_choice
    least = min(rung.peak.device for rung in likely)
    return best_of([rung for rung in likely if rung.peak.device == least], ladder, accumulation, seconds)


def best_of(
    group: list[Rung],
    ladder: tuple[Rung, ...],
    accumulation: OpenSchedules,
    seconds: Callable[[Rung], float | None],
) -> Choice:
    """The least extra compute, unless another is clearly faster: what recomputes may have a micro-batch that fills
    the device, where what does not has a small one.
    """
    least = min(group, key=by_cost)
    if all(rung.schedule.micro_batch_size <= least.schedule.micro_batch_size for rung in group):
        return Choice(least, ladder, accumulation)
    times = [seconds(rung) for rung in group]
    fastest = min((one for one in times if one is not None), default=0.0)
    near = [rung for rung, one in zip(group, times, strict=True) if one is not None and one <= fastest * CLEARLY]
    chosen = min(near, key=by_cost) if None not in times else least
    return Choice(chosen, ladder, accumulation, chosen_by_time=chosen is not least)


def has_room(rung: Rung, usable_bytes: int) -> bool:
    """Whether a rung may be recommended: its likely figure is within the usable memory, and nothing else is short."""
    return rung.verdict in (FITS, TIGHT) and rung.peak.device <= usable_bytes


def by_cost(rung: Rung) -> tuple[float, int, bool, bool]:
    """What is better comes first: less extra compute, then a larger micro-batch, then a switch before code.

    Of one block sqrt is full, which is what the switch is called.
    """
    return rung.recomputed_fraction, -rung.schedule.micro_batch_size, rung.is_code, rung.strategy == "sqrt"


def likeliest_schedule(judge: Judge, accumulation: OpenSchedules, strategy: str) -> Schedule:
    """The exact schedule with the least peak, which is the likeliest to fit; of equal ones the fastest.

    It is that of the smallest micro-batch, but that a step without accumulation keeps no gradients, and that a larger
    micro-batch may have the same peak, as where that is in the optimizer's step.
    """
    smallest = accumulation.smallest()
    if accumulation.micro is not None:
        return smallest
    least = judge.held_bytes(strategy, smallest.micro_batch_size, smallest.accumulates)
    return largest_schedule_within(judge, accumulation, strategy, least) or smallest


def largest_schedule_within(
    judge: Judge,
    accumulation: OpenSchedules,
    strategy: str,
    limit_bytes: int,
    *,
    short: bool = False,
    certain: bool = False,
) -> Schedule | None:
    """The exact schedule with the largest micro-batch with which the allocator holds no more than the limit.

    `short` and `certain` are those of `Judge.largest_micro_batch`.
    """
    if accumulation.free:
        assert accumulation.steps is not None
        accumulates = accumulation.steps > 1
        micro = judge.largest_micro_batch(strategy, accumulates, limit_bytes, short=short, certain=certain)
        return accumulation.for_micro(micro) if micro else None
    for schedule in accumulation.schedules():
        micro = schedule.micro_batch_size
        if _certainly_above(judge, strategy, schedule, limit_bytes):
            continue
        limit = limit_bytes
        if certain:
            limit = min(limit, judge.certain_bytes(strategy, micro, schedule.accumulates))
        within = judge.held_bytes(strategy, micro, schedule.accumulates, short=short) <= limit
        if within and judge.is_on_host(strategy, micro, schedule.accumulates):
            return schedule
    return None


def _certainly_above(judge: Judge, strategy: str, schedule: Schedule, limit_bytes: int) -> bool:
    """Whether the envelope already says no, rounding aside, so that no exact look is needed.

    Without accumulation the gradients are not resident, which saves their size at most, and the loss is not divided:
    the accumulating envelope less that is a lower bound, and most jobs never need the other replay.
    """
    micro = schedule.micro_batch_size
    if micro == 1:
        return False
    sharding = judge.job.sharding
    # with no_sync, ZeRO or HSDP gradients are neither resident as a whole nor absent: the lower bound does not hold
    if sharding is not None and (sharding.no_sync or sharding.zero or sharding.replicas > 1):
        return micro > on_demand.most_within(judge.job, strategy, limit_bytes, judge.replays)
    lower = judge.envelope(strategy, True).peak_bytes(micro)
    if not schedule.accumulates:
        lower -= judge.gradient_bytes(strategy) + DIVIDED_LOSS_BYTES
    return lower > limit_bytes
