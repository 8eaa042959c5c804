"""The choice where the caching allocator is simulated.

What it reserves is no function of the allocated bytes, so the ladder is climbed with estimates first, and only what may
be chosen is simulated: each strategy in turn, below what it reserves too much for, until one fits. The other rows of
the ladder stay estimates.
"""

from __future__ import annotations

from vramplan.planner.accumulation import Accumulation, Schedule
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Choice, Rung, climb, largest_schedule_within
from vramplan.results import DOES_NOT_FIT, FITS

MOST_TRIES = 8  # of a strategy's micro-batches


def settled(
    judge: Judge, accumulation: Accumulation, ladder: tuple[Rung, ...], pinned: str | None, *, looks_for_largest: bool
) -> Choice:
    """The choice among rungs that were simulated, in the order of the ladder."""
    rows = list(ladder)
    for place, rung in enumerate(rows):
        if pinned not in (None, rung.strategy):
            continue
        if rung.verdict == DOES_NOT_FIT and pinned is None:  # not even without a free block
            continue
        rows[place] = _simulated(judge, accumulation, rung, looks_for_largest=looks_for_largest)
        if rows[place].verdict == FITS:
            break
    tried = tuple(rung for rung, before in zip(rows, ladder, strict=True) if rung is not before)
    if tried:
        chosen = climb(accumulation, tried, pinned).rung
    else:
        chosen = climb(accumulation, ladder, pinned).rung
        place = ladder.index(chosen)
        rows[place] = chosen = _at(judge, chosen, chosen.schedule)
    return Choice(chosen, tuple(rows), accumulation)


def _simulated(judge: Judge, accumulation: Accumulation, rung: Rung, *, looks_for_largest: bool) -> Rung:
    if judge.waits_for_steps:  # each number of steps is another pipeline: what the estimate chose is looked at
        own = judge.at_steps(rung.schedule.gradient_accumulation_steps)
        return _at(own, rung, rung.schedule, looks_for_largest=looks_for_largest)
    if rung.strategy == OPTIMAL or accumulation.micro is not None:
        return _at(judge, rung, rung.schedule, looks_for_largest=looks_for_largest)
    for figure in ("high", "low"):
        schedule = _largest(judge, accumulation, rung.strategy, figure)
        if schedule is not None:
            return _at(judge, rung, schedule)
    return _at(judge, rung, accumulation.smallest())


def _at(judge: Judge, rung: Rung, schedule: Schedule, *, looks_for_largest: bool = True) -> Rung:
    peak = judge.footprint(rung.placement, schedule, simulated=True)
    largest = rung.largest_micro_batch_size
    if rung.strategy != OPTIMAL and looks_for_largest:
        largest = _largest_micro_batch(judge, rung.strategy, schedule, largest)
    return rung._replace(
        schedule=schedule,
        peak=peak,
        verdict=judge.verdict_at(rung.placement, schedule, peak),
        largest_micro_batch_size=largest,
    )


def _largest(judge: Judge, accumulation: Accumulation, strategy: str, figure: str) -> Schedule | None:
    """The largest exact schedule of which a figure is within the usable memory; None if a few tries find none."""
    below: int | None = judge.limits.device
    for _ in range(MOST_TRIES):
        if not below:
            return None
        schedule = largest_schedule_within(judge, accumulation, strategy, below)
        if schedule is None:
            return None
        below = _below(judge, strategy, schedule, figure)
        if below is None:
            return schedule
    return None


def _largest_micro_batch(judge: Judge, strategy: str, schedule: Schedule, largest: int) -> int:
    """The largest micro-batch whose device figure is within the usable memory, from one that may be too large.

    What is left below one that is too much is guessed from it, so the guess may be too low: halving finds the rest.
    """

    def too_much(micro: int) -> int | None:
        return _below(judge, strategy, schedule._replace(micro_batch_size=micro), "device")

    def is_too_much(micro: int) -> bool:
        simulation = judge.simulation(strategy, schedule._replace(micro_batch_size=micro))
        if simulation is not None and simulation.asks_for_more:  # how much more is not worth another run
            return True
        return too_much(micro) is not None

    above = largest + 1
    while largest:
        below = too_much(largest)
        if below is None:
            break
        above = largest
        largest = min(largest - 1, judge.largest_micro_batch(strategy, schedule.accumulates, below))
    while above - largest > 1:
        middle = (largest + above) // 2
        if is_too_much(middle):
            above = middle
        else:
            largest = middle
    return largest


def _below(judge: Judge, strategy: str, schedule: Schedule, figure: str) -> int | None:
    """A limit of held bytes below those of a schedule whose figure is more than usable; None: it is within."""
    peak = judge.footprint(strategy, schedule, simulated=True)
    given: int = getattr(peak, figure)
    if given <= judge.usable_bytes:
        return None
    room, needs = judge.usable_bytes - judge.outside_bytes, given - judge.outside_bytes
    held = peak.allocated + peak.stranded
    return max(0, min(held - 1, held * room // needs))
