"""The figures of every stage of a pipeline."""

from __future__ import annotations

from vramplan.planner.accumulation import Schedule
from vramplan.planner.budget import footprint
from vramplan.planner.judge import Judge
from vramplan.results.stages import StageRow


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
