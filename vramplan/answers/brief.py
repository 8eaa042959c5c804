"""The answer about a job in brief: what a row of a comparison shows, and a plan of a search."""

from __future__ import annotations

from vramplan.answers import on_demand
from vramplan.answers.components import parameters_of_all
from vramplan.answers.fit import time_and_run
from vramplan.planner.decision import is_worth_a_look, looked_at
from vramplan.planner.ladder import Rung
from vramplan.planner.replays import Replays
from vramplan.planner.timed import host_held
from vramplan.planner.verdict import chosen_for
from vramplan.results import FITS
from vramplan.results.run import Limit, Run
from vramplan.results.time import Time
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.length import NO_LENGTH
from vramplan.values.parallel import Split


class Brief(NamedTuple):
    """A judged job: every choice made, and the figures that are compared."""

    job: ResolvedJob
    rung: Rung
    usable_bytes: int
    devices: int
    time: Time | None  # None where no peak rate of the GPU is known; of a run that fits, or that has a length
    run: Run | None  # None where the job does not say how long it trains
    is_estimated: bool  # what the allocator reserves, where the whole answer simulates it
    limits: tuple[Limit, ...] = ()  # the deadline and the budget, and whether they are kept
    host_bytes: int | None = None  # that a node needs of its host; None where nothing is there, or no time is asked for


def brief(job: ResolvedJob, replays: Replays, *, closer_from: int | None = None, of_misfits: bool = True) -> Brief:
    """The verdict, the time and the length of a job; the same as the whole answer's. Raises UsageError as it does.

    The largest micro-batch is that of the chosen strategy; without `of_misfits` it is 0 where the job does not fit for
    certain, as it takes a replay more. `closer_from` is that of `decide`.
    """
    decision = chosen_for(job, replays)
    is_estimated = closer_from is None and is_worth_a_look(decision)
    decision = looked_at(decision, closer_from, whole_ladder=False, surely=not of_misfits)
    judge, rung, judged = decision.judge, decision.choice.rung, decision.judged
    looks = of_misfits or rung.verdict == FITS
    if looks and not rung.largest_micro_batch_size:
        largest = judge.largest_micro_batch(rung.placement, rung.schedule.accumulates, judge.limits.device)
        rung = rung._replace(largest_micro_batch_size=largest)
    if looks and judge.simulates:
        rung = on_demand.with_largest(judge, rung)
    time, run, host = None, None, None
    if rung.verdict == FITS or job.length != NO_LENGTH:
        record = decision.record
        parameters = 0 if job.length == NO_LENGTH else parameters_of_all(job, record)[0]
        host = host_held(record, job, rung.schedule)
        _, time, run = time_and_run(decision, host, parameters)
    limits = on_demand.limits_of(judged, run) if job.length.has_limits else ()
    devices = job.data_parallel_size * (job.split or Split()).devices
    held = None if host is None else host.node_bytes
    return Brief(judged, rung, judge.usable_bytes, devices, time, run, is_estimated, limits, held)
