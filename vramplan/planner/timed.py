"""The time of a job's step under a plan: the devices of its pipeline that differ, each with its record."""

from __future__ import annotations

from vramplan.planner.accumulation import Schedule
from vramplan.planner.judge import Judge
from vramplan.results import Host
from vramplan.results.time import Time
from vramplan.time.step import Device, time_of
from vramplan.values.job import Job


def step_time(job: Job, judge: Judge, strategy: str, schedule: Schedule, host: Host | None = None) -> Time | None:
    """The time of a step of `job`, of which `judge` has the records; None where the peak of the GPU is not known."""
    micro, steps = schedule.micro_batch_size, schedule.gradient_accumulation_steps
    return time_of(job, devices_of(judge, strategy, schedule), micro, steps, host)


def devices_of(judge: Judge, strategy: str, schedule: Schedule) -> list[Device]:
    """Those of a pipeline that have other blocks than the ones before them; without one, the device."""
    micro, accumulates = schedule.micro_batch_size, schedule.accumulates
    stages = judge.stages
    if not stages:
        return [Device(judge.record(strategy, accumulates, micro == 1), judge.job.model.blocks, 1)]
    first: dict[object, int] = {}
    counts: dict[int, int] = {}
    for stage in stages:
        number = first.setdefault((stage.parts, stage.first, stage.last), stage.number)
        counts[number] = counts.get(number, 0) + 1
    return [
        Device(judge.record(strategy, accumulates, micro == 1, number), stages[number].blocks, count)
        for number, count in counts.items()
    ]
