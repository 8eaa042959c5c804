"""The iteration of one stage of a pipeline."""

from __future__ import annotations

from vramplan.memory.iteration import Setup
from vramplan.memory.parallel.stages import Stage
from vramplan.planner.judge import setup_of
from vramplan.planner.stacks import segments_in
from vramplan.spec import Job


def setup_of_stage(job: Job, strategy: str, accumulates: bool, stage: Stage) -> Setup:
    """The setup of a job with the blocks of a stage alone; a strategy is that of each part of the model."""
    setup = setup_of(job, strategy, accumulates)
    blocks = stage.parts[0]
    return setup._replace(
        model=job.model._replace(layers=blocks),
        segments=segments_in(strategy, (blocks,), every_second_matmul=job.every_second_matmul),
        stage=stage,
    )
