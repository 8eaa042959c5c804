"""The choice of one job at its least cost: what a gate asks for, and a row of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.planner import on_demand
from vramplan.planner.accumulation import OpenSchedules
from vramplan.planner.budget import Footprint
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import accumulation_of, best_schedule, rung_of, strategies_of
from vramplan.planner.decision import IN_DOUBT, Decision, decide, looked_at
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import CLEARLY, Rung, climb, has_room
from vramplan.planner.replays import Replays
from vramplan.planner.timed import seconds_of_samples
from vramplan.results import FITS
from vramplan.values.job import ResolvedJob

SEVERAL = ("sqrt",)  # strategies of the ladder with checkpoints of several blocks
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
    seen: dict[str, Rung] = {}
    one_size = pinned is not None or accumulation.micro is not None
    names = strategies_of(job) if pinned is None else (pinned,)
    has_bounds = len(names) > 1 and job.sharding is not None and bool(job.sharding.zero)
    for strategy in sorted(names, key=lambda name: name in SEVERAL) if has_bounds else names:
        if has_bounds and _is_hopeless(judge, accumulation, strategy, seen):
            continue
        schedule = best_schedule(judge, accumulation, strategy)
        peak = judge.footprint(strategy, schedule)
        rung = rung_of(judge, strategy, schedule, peak, judge.verdict_at(strategy, schedule, peak), largest=0)
        seen[strategy] = rung
        if rung.verdict == FITS and not rung.recomputed_fraction and (one_size or _is_saturated(rung, seconds)):
            break  # nothing costs less, and nothing that computes more is faster
    ladder = tuple(seen[name] for name in names if name in seen)
    return Decision(job, judge, climb(accumulation, ladder, pinned, judge.usable_bytes, seconds))


def _is_hopeless(judge: Judge, accumulation: OpenSchedules, strategy: str, seen: Mapping[str, Rung]) -> bool:
    """Whether a strategy will not be chosen, by a plain replay that many jobs share: those of ZeRO take ten times as
    long.

    One that stores everything may have no room even for the smallest micro-batch. Checkpoints of several blocks compute
    again no less than those of single blocks, so they are of use for a larger micro-batch alone.
    """
    limits, least = judge.limits, accumulation.smallest().micro_batch_size

    def most(limit_bytes: int) -> int:
        return on_demand.most_within(judge.job, strategy, limit_bytes, judge.replays)

    if strategy == "none":
        return most(limits.low) < least
    single = seen.get("full") if strategy in SEVERAL else None
    if single is None or not has_room(single, judge.usable_bytes):
        return False
    if single.verdict == FITS:
        return most(limits.high) <= single.schedule.micro_batch_size
    return most(limits.high) < least and most(single.peak.allocated + single.peak.stranded - 1) < least


def _is_saturated(rung: Rung, seconds: Callable[[Rung], float | None]) -> bool:
    """Whether a larger micro-batch would not make a rung clearly faster, so that none with more compute is."""
    schedule = rung.schedule
    much = schedule._replace(micro_batch_size=schedule.micro_batch_size * LARGER)
    now, then = seconds(rung), seconds(rung._replace(schedule=much))
    return now is None or then is None or now <= then * CLEARLY
