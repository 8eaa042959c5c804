"""The answer about a job in brief: what a row of a comparison shows, and a plan of a search."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.answers.components import parameters_of_all
from vramplan.planner.ladder import Rung
from vramplan.planner.replays import Replays
from vramplan.planner.timed import step_time
from vramplan.planner.verdict import chosen_for
from vramplan.results.run import Run
from vramplan.results.time import Time
from vramplan.values.job import Job
from vramplan.values.length import NO_LENGTH
from vramplan.values.parallel import Split


class Brief(NamedTuple):
    """A judged job: every choice made, and the figures that are compared."""

    job: Job
    rung: Rung
    usable_bytes: int
    devices: int
    time: Time | None  # None where no peak rate of the GPU is known
    run: Run | None  # None where the job does not say how long it trains


def brief(job: Job, replays: Replays) -> Brief:
    """The verdict, the time and the length of a job; the same as the whole answer's. Raises UsageError as it does.

    The largest micro-batch is that of the chosen strategy.
    """
    decision = chosen_for(job, replays)
    judge, rung, judged = decision.judge, decision.choice.rung, decision.judged
    if not rung.largest_micro_batch_size:
        largest = judge.largest_micro_batch(rung.placement, rung.schedule.accumulates, judge.limits.device)
        rung = rung._replace(largest_micro_batch_size=largest)
    record, host = decision.record, None
    if record.host or record.host_states is not None:
        from vramplan.replay.host import host_of  # few jobs offload

        host = host_of(record, job, rung.schedule.micro_batch_size, rung.schedule.gradient_accumulation_steps)
    time = step_time(judged, judge, rung.placement, rung.schedule, host)
    run = None
    if time is not None and judged.length != NO_LENGTH:
        from vramplan.planner.whole_run import timed  # only who asks for the length of a run pays for it

        _, time, run = timed(judged, time, rung.schedule, parameters_of_all(job, record)[0])
    return Brief(judged, rung, judge.usable_bytes, job.data_parallel_size * (job.split or Split()).devices, time, run)
