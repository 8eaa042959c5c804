"""The choice of one job at its least cost: what a gate asks for, and a row of a comparison."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import accumulation_of, best_schedule, rung_of, strategies_of
from vramplan.planner.decision import IN_DOUBT, Decision, decide, looked_at
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import CLEARLY, Rung, climb
from vramplan.planner.replays import Replays
from vramplan.planner.timed import seconds_of_samples
from vramplan.results import FITS
from vramplan.values.job import ResolvedJob

LARGER = 64  # times a micro-batch: what it is to be compared with as the fastest that there could be


def verdict_of(job: ResolvedJob, replays: Replays) -> tuple[Footprint, str, int]:
    """The peak, the verdict and the usable bytes that `decide` comes to, closer where they are in doubt.

    Raises UsageError as it does.
    """
    decision = looked_at(chosen_for(job, replays), IN_DOUBT, whole_ladder=False)
    rung = decision.choice.rung
    return rung.peak, rung.verdict, decision.judge.usable_bytes


def chosen_for(job: ResolvedJob, replays: Replays) -> Decision:
    """What `decide` comes to, with as much of the ladder as that takes. Raises UsageError as it does.

    The largest micro-batch of a strategy is 0 where the choice did not need it.
    """
    judge = Judge(job, replays)
    pinned = job.activation_checkpointing
    if judge.simulates or judge.waits_for_steps or pinned == OPTIMAL:
        return decide(job, replays, whole_ladder=False)
    accumulation, seconds = accumulation_of(job), seconds_of_samples(judge)
    seen = []
    one_size = pinned is not None or accumulation.micro is not None
    for strategy in strategies_of(job) if pinned is None else (pinned,):
        schedule = best_schedule(judge, accumulation, strategy)
        peak = judge.footprint(strategy, schedule)
        rung = rung_of(judge, strategy, schedule, peak, judge.verdict_at(strategy, schedule, peak), largest=0)
        seen.append(rung)
        if rung.verdict == FITS and not rung.recomputed_fraction and (one_size or _is_saturated(rung, seconds)):
            break  # nothing costs less, and nothing that computes more is faster
    return Decision(job, judge, climb(accumulation, tuple(seen), pinned, judge.usable_bytes, seconds))


def _is_saturated(rung: Rung, seconds: Callable[[Rung], float | None]) -> bool:
    """Whether a larger micro-batch would not make a rung clearly faster, so that none with more compute is."""
    schedule = rung.schedule
    much = schedule._replace(micro_batch_size=schedule.micro_batch_size * LARGER)
    now, then = seconds(rung), seconds(rung._replace(schedule=much))
    return now is None or then is None or now <= then * CLEARLY
