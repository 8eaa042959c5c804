"""The iteration of one stage of a pipeline, and the figures of all."""

from __future__ import annotations

from vramplan.planner.accumulation import Schedule
from vramplan.planner.budget import footprint
from vramplan.planner.judge import Judge, setup_of
from vramplan.planner.stacks import segments_in
from vramplan.replay.pipeline.stages import Stage
from vramplan.replay.setup import Setup
from vramplan.results.stages import StageRow
from vramplan.values.job import Job


def setup_of_stage(job: Job, strategy: str, accumulates: bool, stage: Stage) -> Setup:
    """The setup of a job with the blocks of a stage alone; a strategy is that of each part of the model."""
    setup = setup_of(job, strategy, accumulates)
    blocks = stage.parts[0]
    return setup._replace(
        model=job.model._replace(layers=blocks),
        segments=segments_in(strategy, (blocks,), every_second_matmul=job.every_second_matmul),
        stage=stage,
    )


def rows_of_stages(judge: Judge, strategy: str, schedule: Schedule) -> tuple[StageRow, ...]:
    """Each stage at its own worst moment."""
    micro, accumulates = schedule.micro_batch_size, schedule.accumulates
    found = []
    for stage in judge.stages:
        record = judge.record(strategy, accumulates, micro == 1, stage.number)
        allocated, stranded = record.peak_bytes(micro), record.stranded_bytes(micro)
        device = footprint(allocated, judge.outside_bytes, stranded_bytes=stranded).device
        found.append(StageRow(stage.number, stage.blocks, stage.first, stage.last, stage.in_flight, allocated, device))
    return tuple(found)
