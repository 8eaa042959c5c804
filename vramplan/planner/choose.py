"""The ladder of strategies, and the choice of what the job leaves open (docs/job-format.md, "Best choice")."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.planner.accumulation import Accumulation, Schedule
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL, STRATEGIES
from vramplan.planner.judge import Judge
from vramplan.replay.models import ladder_of, no_checkpointing
from vramplan.results import FITS, TIGHT
from vramplan.values.job import Job

DIVIDED_LOSS_BYTES = 4096  # more than the few scalars that only an accumulating step has


class Rung(NamedTuple):
    """One strategy at its own best schedule."""

    strategy: str
    schedule: Schedule
    peak: Footprint
    verdict: str
    largest_micro_batch_size: int
    placement: str  # the strategy spelled out, where its checkpoints depend on sizes


class Choice(NamedTuple):
    """What was chosen, and the whole ladder."""

    rung: Rung
    ladder: tuple[Rung, ...]
    accumulation: Accumulation


def choose(job: Job, judge: Judge, *, whole_ladder: bool = True) -> Choice:
    """Climb the ladder: the first strategy that fits, else the first that is tight, else the smallest peak.

    Without the `whole_ladder` a job that pins a strategy is judged at that alone.
    """
    accumulation = accumulation_of(job)
    pinned = job.activation_checkpointing
    rows = strategies_of(job)
    names = rows if pinned is None or pinned in rows else (*rows, pinned)
    if pinned is not None and not whole_ladder:
        names = (pinned,)
    ladder = tuple(best_rung(judge, accumulation, name) for name in names)
    if judge.simulates:
        from vramplan.planner.settle import settled  # only jobs with a simulated allocator pay for it

        return settled(judge, accumulation, ladder, pinned)
    return climb(accumulation, ladder, pinned)


def accumulation_of(job: Job) -> Accumulation:
    """The schedules that a job leaves open. Raises UsageError if its batch keys contradict each other."""
    return Accumulation(
        micro=job.micro_batch_size,
        steps=job.gradient_accumulation_steps,
        global_batch=job.global_batch_size or None,
        given=job.global_batch_given,
        data=job.data_parallel_size,
        multiple=steps_multiple(job),
    )


def climb(accumulation: Accumulation, ladder: tuple[Rung, ...], pinned: str | None) -> Choice:
    """The first that fits, else the first that is tight, else that with the smallest peak; `pinned`: only that one."""
    open_to_choice = [rung for rung in ladder if pinned is None or rung.strategy == pinned]
    for wanted in (FITS, TIGHT):
        for rung in open_to_choice:
            if rung.verdict == wanted:
                return Choice(rung, ladder, accumulation)
    return Choice(min(open_to_choice, key=lambda rung: rung.peak.device), ladder, accumulation)


def steps_multiple(job: Job) -> int:
    """What the steps have to be a multiple of, where they are open: the stages of an interleaved schedule."""
    split = job.split
    return split.pipeline if split is not None and split.virtual > 1 and job.gradient_accumulation_steps is None else 1


def strategies_of(job: Job) -> tuple[str, ...]:
    """The rows of the ladder: only the first where the activations cannot be checkpointed, or it is not modelled.

    Of the others those that the runtime has.
    """
    only_stored = no_checkpointing(job.model.family) or (job.compile and job.adapter is not None)
    rows = STRATEGIES[:1] if only_stored else ladder_of(job.model.family) or STRATEGIES
    known = job.runtime.only.get("activation_checkpointing")
    return rows if known is None else tuple(row for row in rows if row in known) or rows


def best_rung(judge: Judge, accumulation: Accumulation, strategy: str) -> Rung:
    """A strategy at the largest exact micro-batch that fits, else that is tight, else at the smallest one."""
    if judge.waits_for_steps:
        return _piped_rung(judge, accumulation, strategy)
    if strategy == OPTIMAL:
        return _placed_rung(judge, accumulation)
    schedule = best_schedule(judge, accumulation, strategy)
    peak = judge.footprint(strategy, schedule)
    verdict = judge.verdict_at(strategy, schedule, peak)
    largest = judge.largest_micro_batch(strategy, schedule.accumulates, judge.limits.device)
    return Rung(strategy, schedule, peak, verdict, largest, strategy)


def best_schedule(judge: Judge, accumulation: Accumulation, strategy: str) -> Schedule:
    """The exact schedule with the largest micro-batch that fits, else that is tight, else with the smallest one."""
    if accumulation.micro is not None:
        return accumulation.smallest()  # there is no other
    return (
        largest_schedule_within(judge, accumulation, strategy, judge.limits.high)
        or largest_schedule_within(judge, accumulation, strategy, judge.limits.low, short=True)
        or accumulation.smallest()
    )


def _piped_rung(judge: Judge, accumulation: Accumulation, strategy: str) -> Rung:
    """The same where each number of steps is another pipeline, with micro-batches of its own in flight."""
    schedules = list(accumulation.schedules())
    chosen = schedules[-1]
    for figure in ("high", "low"):
        fitting = (one for one in schedules if _piped_figure(judge, strategy, one, figure) <= judge.usable_bytes)
        found = next(fitting, None)
        if found is not None:
            chosen = found
            break
    own = judge.at_steps(chosen.gradient_accumulation_steps)
    peak = own.footprint(strategy, chosen)
    largest = own.largest_micro_batch(strategy, chosen.accumulates, own.limits.device)
    return Rung(strategy, chosen, peak, own.verdict_at(strategy, chosen, peak), largest, strategy)


def _piped_figure(judge: Judge, strategy: str, schedule: Schedule, figure: str) -> int:
    own = judge.at_steps(schedule.gradient_accumulation_steps)
    held = own.held_bytes(strategy, schedule.micro_batch_size, schedule.accumulates, short=figure == "low")
    if held > judge.usable_bytes:  # no need to look closer
        return held
    size: int = getattr(own.footprint(strategy, schedule), figure)
    return size


def _placed_rung(judge: Judge, accumulation: Accumulation) -> Rung:
    """The same for a strategy that is another one at each micro-batch."""
    from vramplan.planner.placements import fits, largest_micro_batch, place  # only who asks for it pays for it

    def largest_schedule(limit_bytes: int) -> Schedule | None:
        if accumulation.free:
            assert accumulation.steps is not None
            micro = largest_micro_batch(judge, accumulation.steps > 1, limit_bytes)
            return accumulation.for_micro(micro) if micro else None
        most: int | None = None
        for schedule in accumulation.schedules():
            if schedule.accumulates and accumulation.micro is None:
                if most is None:
                    most = largest_micro_batch(judge, True, limit_bytes)
                if schedule.micro_batch_size <= most:
                    return schedule
            elif fits(judge, schedule, limit_bytes):
                return schedule
        return None

    schedule = largest_schedule(judge.limits.high) or largest_schedule(judge.limits.low) or accumulation.smallest()
    placement, peak, verdict = place(judge, OPTIMAL, schedule)
    largest = largest_micro_batch(judge, schedule.accumulates, judge.limits.device)
    return Rung(OPTIMAL, schedule, peak, verdict, largest, placement)


def largest_schedule_within(
    judge: Judge, accumulation: Accumulation, strategy: str, limit_bytes: int, *, short: bool = False
) -> Schedule | None:
    """The exact schedule with the largest micro-batch with which the allocator holds no more than the limit.

    `short` is that of `Judge.held_bytes`.
    """
    if accumulation.free:
        assert accumulation.steps is not None
        micro = judge.largest_micro_batch(strategy, accumulation.steps > 1, limit_bytes, short=short)
        return accumulation.for_micro(micro) if micro else None
    for schedule in accumulation.schedules():
        micro = schedule.micro_batch_size
        if _certainly_above(judge, strategy, schedule, limit_bytes):
            continue
        within = judge.held_bytes(strategy, micro, schedule.accumulates, short=short) <= limit_bytes
        if within and judge.is_on_host(strategy, micro, schedule.accumulates):
            return schedule
    return None


def _certainly_above(judge: Judge, strategy: str, schedule: Schedule, limit_bytes: int) -> bool:
    """Whether the envelope already says no, rounding aside, so that no exact look is needed.

    Without accumulation the gradients are not resident, which saves their size at most, and the loss is not divided:
    the accumulating envelope less that is a lower bound, and most jobs never need the other replay.
    """
    micro = schedule.micro_batch_size
    sharding = judge.job.sharding
    # with no_sync, ZeRO or HSDP gradients are neither resident as a whole nor absent: the lower bound does not hold
    if micro == 1 or (sharding is not None and (sharding.no_sync or sharding.zero or sharding.replicas > 1)):
        return False
    lower = judge.envelope(strategy, True).peak_bytes(micro)
    if not schedule.accumulates:
        lower -= judge.gradient_bytes(strategy) + DIVIDED_LOSS_BYTES
    return lower > limit_bytes
