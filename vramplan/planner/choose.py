"""The ladder of strategies, and the choice of what the job leaves open (docs/job-format.md, "Best choice")."""

from __future__ import annotations

from vramplan.planner.accumulation import OpenSchedules, Schedule
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL, STRATEGIES, blocks_per_segment, segments_in
from vramplan.planner.judge import Judge, last_that_holds
from vramplan.planner.ladder import Choice, Rung, climb, largest_schedule_within, likeliest_schedule
from vramplan.planner.timed import seconds_of_samples
from vramplan.replay.models import ladder_of
from vramplan.replay.models.capable import has_switch, no_checkpointing, reads_first_stack
from vramplan.replay.placed import walks_first_stack_again
from vramplan.values.job import ResolvedJob

PLAIN_SETTINGS = ("none", "full")


def choose(job: ResolvedJob, judge: Judge, *, whole_ladder: bool = True, surely: bool = False) -> Choice:
    """The strategy with the least extra compute among those that fit and are fast (`climb`).

    Without the `whole_ladder` a job that pins a strategy is judged at that alone. `surely` as in `looked_at`.
    """
    accumulation = accumulation_of(job)
    pinned = job.activation_checkpointing
    names = looked_through(job, whole_ladder=whole_ladder)
    ladder = tuple(best_rung(judge, accumulation, name) for name in names)
    if judge.simulates:
        return choose_simulated(judge, accumulation, ladder, whole_ladder=whole_ladder, surely=surely)
    return climb(accumulation, ladder, pinned, judge.usable_bytes, seconds_of_samples(judge))


def choose_simulated(
    judge: Judge, accumulation: OpenSchedules, ladder: tuple[Rung, ...], *, whole_ladder: bool, surely: bool = False
) -> Choice:
    """The choice of a judge who simulates the allocator, from a ladder of estimates. `surely` as in `looked_at`."""
    from vramplan.planner.settle import settled  # only jobs with a simulated allocator pay for it

    pinned = judge.job.activation_checkpointing
    return settled(judge, accumulation, ladder, pinned, looks_for_largest=whole_ladder, surely=surely)


def looked_through(job: ResolvedJob, *, whole_ladder: bool = True) -> tuple[str, ...]:
    """The strategies that `choose` looks at."""
    rows, pinned = strategies_of(job), job.activation_checkpointing
    if pinned is not None and not whole_ladder:
        return (pinned,)
    return rows if pinned is None or pinned in rows else (*rows, pinned)


def accumulation_of(job: ResolvedJob) -> OpenSchedules:
    """The schedules that a job leaves open. Raises UsageError if its batch keys contradict each other."""
    return OpenSchedules(
        micro=job.micro_batch_size,
        steps=job.gradient_accumulation_steps,
        global_batch=job.global_batch_size or None,
        given=job.global_batch_given,
        data=job.data_parallel_size,
        multiple=steps_multiple(job),
    )


def steps_multiple(job: ResolvedJob) -> int:
    """What the steps have to be a multiple of, where they are open: the groups of an interleaved schedule."""
    split = job.split
    if split is None or split.virtual == 1 or job.gradient_accumulation_steps is not None:
        return 1
    return split.group or split.pipeline


def strategies_of(job: ResolvedJob) -> tuple[str, ...]:
    """The rows of the ladder: only the first where the activations cannot be checkpointed, or it is not modelled.

    Of the others those that the runtime has.
    """
    adapter = job.adapter
    only_stored = no_checkpointing(job.model.family) or (adapter is not None and (job.compile or adapter.is_prefix))
    rows = STRATEGIES[:1] if only_stored else ladder_of(job.model.family) or STRATEGIES
    if job.checkpoint_reentrant and reads_first_stack(job.model.family):
        rows = tuple(row for row in rows if not walks_first_stack_again(row, job.model.stacks))
    known = job.runtime.only.get("activation_checkpointing")
    return rows if known is None else tuple(row for row in rows if row in known) or rows


def best_rung(judge: Judge, accumulation: OpenSchedules, strategy: str) -> Rung:
    """A strategy at the largest exact micro-batch that fits, else at the one that is the likeliest to fit."""
    if judge.waits_for_steps:
        return _piped_rung(judge, accumulation, strategy)
    if strategy == OPTIMAL:
        return _placed_rung(judge, accumulation)
    schedule = best_schedule(judge, accumulation, strategy)
    peak = judge.footprint(strategy, schedule)
    verdict = judge.verdict_at(strategy, schedule, peak)
    largest = judge.largest_micro_batch(strategy, schedule.accumulates, judge.limits.device)
    return rung_of(judge, strategy, schedule, peak, verdict, largest)


def rung_of(
    judge: Judge, strategy: str, schedule: Schedule, peak: Footprint, verdict: str, largest: int, placement: str = ""
) -> Rung:
    """A rung with what the strategy costs."""
    spelled = placement or strategy
    fraction = judge.recomputed_fraction(spelled)
    return Rung(strategy, schedule, peak, verdict, largest, spelled, fraction, is_code(judge.job, strategy))


def is_code(job: ResolvedJob, strategy: str) -> bool:
    """Whether the program has no setting for a strategy, so that it takes some lines of Python around the blocks.

    `every:1`, and `sqrt` of a model of two blocks, are what `full` is. A profile that does not say which settings there
    are counts as having the one for every block.
    """
    if not has_switch(job.model.family):
        return strategy != "none"
    settings = job.runtime.checkpointing_settings or PLAIN_SETTINGS
    heads = {setting.partition(":")[0] for setting in settings}
    stacks = job.model.stacks
    if strategy.partition(":")[0] in heads or ("every" in heads and blocks_per_segment(strategy, 1) is not None):
        return False
    return not ("full" in heads and segments_in(strategy, stacks) == segments_in("full", stacks))


def best_schedule(judge: Judge, accumulation: OpenSchedules, strategy: str) -> Schedule:
    """The exact schedule with the largest micro-batch that fits, else the one that is the likeliest to fit."""
    if accumulation.micro is not None:
        return accumulation.smallest()  # there is no other
    found = largest_schedule_within(judge, accumulation, strategy, judge.limits.high, certain=True)
    return found or likeliest_schedule(judge, accumulation, strategy)


def _piped_rung(judge: Judge, accumulation: OpenSchedules, strategy: str) -> Rung:
    """The same where each number of steps is another pipeline, with micro-batches of its own in flight."""
    schedules = list(accumulation.schedules())
    few = [one for one in schedules if one.gradient_accumulation_steps < judge.steps_that_fill]
    many = schedules[len(few) :][::-1]  # the smallest micro-batch first

    def fits(schedule: Schedule) -> bool:
        return _piped_figure(judge, strategy, schedule, "high") <= judge.usable_bytes

    chosen = next(filter(fits, few), None)
    if chosen is None and many and fits(many[0]):
        chosen = many[last_that_holds(lambda at: fits(many[at]), 0, len(many) - 1)]
    if chosen is None:
        chosen = min((*few, schedules[-1]), key=lambda one: _piped_figure(judge, strategy, one, "device"))
    own = judge.at_steps(chosen.gradient_accumulation_steps)
    peak = own.footprint(strategy, chosen)
    largest = own.largest_micro_batch(strategy, chosen.accumulates, own.limits.device)
    return rung_of(own, strategy, chosen, peak, own.verdict_at(strategy, chosen, peak), largest)


def _piped_figure(judge: Judge, strategy: str, schedule: Schedule, figure: str) -> int:
    own = judge.at_steps(schedule.gradient_accumulation_steps)
    held = own.held_bytes(strategy, schedule.micro_batch_size, schedule.accumulates)
    if held > judge.usable_bytes:  # no need to look closer
        return held
    size: int = getattr(own.footprint(strategy, schedule), figure)
    return size


def _placed_rung(judge: Judge, accumulation: OpenSchedules) -> Rung:
    """The same for a strategy that is another one at each micro-batch."""
    from vramplan.planner.placement.strategies import (  # the search for checkpoints is large
        fits,
        largest_micro_batch,
        place,
    )

    limit = judge.limits.high

    def largest_certain() -> Schedule | None:
        if accumulation.free:
            assert accumulation.steps is not None
            micro = largest_micro_batch(judge, accumulation.steps > 1, limit, certain=True)
            return accumulation.for_micro(micro) if micro else None
        most: int | None = None
        for schedule in accumulation.schedules():
            if schedule.accumulates and accumulation.micro is None:
                if most is None:
                    most = largest_micro_batch(judge, True, limit, certain=True)
                if schedule.micro_batch_size <= most:
                    return schedule
            elif fits(judge, schedule, limit, certain=True):
                return schedule
        return None

    schedule = largest_certain() or accumulation.smallest()
    placement, peak, verdict = place(judge, OPTIMAL, schedule)
    largest = largest_micro_batch(judge, schedule.accumulates, judge.limits.device)
    return rung_of(judge, OPTIMAL, schedule, peak, verdict, largest, placement)
