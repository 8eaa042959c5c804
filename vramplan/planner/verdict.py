"""The choice of one job at its least cost: what a gate asks for, and a row of a comparison."""

from __future__ import annotations

from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import accumulation_of, best_schedule, rung_of, strategies_of
from vramplan.planner.decision import Decision, decide
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import climb
from vramplan.planner.replays import Replays
from vramplan.results import FITS
from vramplan.values.job import Job


def verdict_of(job: Job, replays: Replays) -> tuple[Footprint, str, int]:
    """The peak, the verdict and the usable bytes that `decide` comes to. Raises UsageError as it does."""
    decision = chosen_for(job, replays)
    rung = decision.choice.rung
    return rung.peak, rung.verdict, decision.judge.usable_bytes


def chosen_for(job: Job, replays: Replays) -> Decision:
    """What `decide` comes to, with as much of the ladder as that takes. Raises UsageError as it does.

    The largest micro-batch of a strategy is 0 where the choice did not need it.
    """
    judge = Judge(job, replays)
    pinned = job.activation_checkpointing
    if judge.simulates or judge.waits_for_steps or pinned == OPTIMAL:
        return decide(job, replays, whole_ladder=False)
    accumulation = accumulation_of(job)
    seen = []
    for strategy in strategies_of(job) if pinned is None else (pinned,):
        schedule = best_schedule(judge, accumulation, strategy)
        peak = judge.footprint(strategy, schedule)
        rung = rung_of(judge, strategy, schedule, peak, judge.verdict_at(strategy, schedule, peak), largest=0)
        seen.append(rung)
        if rung.verdict == FITS and not rung.recomputed_fraction:  # nothing costs less
            break
    return Decision(job, judge, climb(accumulation, tuple(seen), pinned, judge.usable_bytes))
