"""The time of a job's step under a plan: the devices of its pipeline that differ, each with its record."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.planner import on_demand
from vramplan.planner.accumulation import Schedule
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Rung
from vramplan.planner.time.step import TimedStage, time_of
from vramplan.replay.record import Record
from vramplan.results import Host
from vramplan.results.time import Time
from vramplan.values.job import ResolvedJob


def step_time(
    job: ResolvedJob, judge: Judge, strategy: str, schedule: Schedule, host: Host | None = None
) -> Time | None:
    """The time of a step of `job`, of which `judge` has the records; None where the peak of the GPU is not known."""
    micro, steps = schedule.micro_batch_size, schedule.gradient_accumulation_steps
    return time_of(job, devices_of(judge, strategy, schedule), micro, steps, host)


def seconds_of_samples(judge: Judge) -> Callable[[Rung], float | None]:
    """The seconds of a sample of a rung of the ladder; None where the peak rate of the GPU is not known."""

    def seconds(rung: Rung) -> float | None:
        own, schedule = judge, rung.schedule
        job = judge.job._replace(activation_checkpointing=rung.strategy)  # what computes again, communicates again
        if judge.waits_for_steps:
            own = judge.at_steps(schedule.gradient_accumulation_steps)
        micro, accumulates = schedule.micro_batch_size, schedule.accumulates
        host = host_held(own.record_at(rung.placement, micro, accumulates), job, schedule)
        time = step_time(job, own, rung.placement, schedule, host)
        return None if time is None else 1 / time.samples_per_second

    return seconds


def host_held(record: Record, job: ResolvedJob, schedule: Schedule) -> Host | None:
    """What is on the host; None if nothing is offloaded."""
    if not record.host and record.host_states is None:
        return None
    return on_demand.host_of(record, job, schedule.micro_batch_size, schedule.gradient_accumulation_steps)


def devices_of(judge: Judge, strategy: str, schedule: Schedule) -> list[TimedStage]:
    """Those of a pipeline that have other blocks than the ones before them; without one, the device."""
    micro, accumulates = schedule.micro_batch_size, schedule.accumulates
    stages = judge.stages
    if not stages:
        return [TimedStage(judge.record(strategy, accumulates, micro == 1), judge.job.model.numbered_blocks, 1)]
    first: dict[object, int] = {}
    counts: dict[int, int] = {}
    make_up = on_demand.make_ups(judge.job.model)
    for stage in stages:
        number = first.setdefault(on_demand.make_up_of(stage, make_up), stage.number)
        counts[number] = counts.get(number, 0) + 1
    return [
        TimedStage(judge.record(strategy, accumulates, micro == 1, number), stages[number].blocks, count)
        for number, count in counts.items()
    ]
