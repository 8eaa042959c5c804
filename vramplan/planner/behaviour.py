"""How the runs of a training program are planned: what most do, for those that do otherwise to say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from vramplan.engines import behaviour_of
from vramplan.replay.models.modules import SMOOTHED
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP

if TYPE_CHECKING:
    from vramplan.planner.candidate import Candidate  # only answers with remedies need it

ROOM = "planner"


class PlannerBehaviour:
    """What a program may do differently; a subclass in its folder says what it does."""

    unplaced: tuple[str, str] | None = None  # why checkpoints are not placed by size, and what to do instead
    minds_micro_batches: bool = False  # of a step: a stage of a pipeline holds more for them than for those in flight
    keeps_buffers: bool = False  # gradients are added to buffers that are there from the first micro-step on
    smoothed_loss: str = SMOOTHED  # the loss that smoothed labels make
    taught_in_tiles: str | None = None  # the same where the job's loss is made by tiles
    taught_from_file: str | None = None  # the same where the predictions of the teacher were saved
    taught_loss: str | None = None  # that of a teacher beside the model; None: the job's own, with a divergence

    # from_pretrained brings weights of few bits to the device, with what else vramplan/planner/loads.py is told of it
    loads_by_transformers: Mapping[str, bool] | None = None

    def optimizer_of(self, job: ResolvedJob) -> str:
        """The optimizer by the name that `replay.optimizers` has for it."""
        return f"{job.optimizer}-32bit" if job.fp32_states else job.optimizer

    def runs_other_modules(self, job: ResolvedJob) -> bool:
        """Whether a job mostly runs in modules of another library than those that were traced."""
        return False

    def shared_states(self, base: ResolvedJob) -> Iterable[Candidate]:
        """Of replicas: changes that only this program has, with which each device holds less."""
        return ()


DEFAULT = PlannerBehaviour()


def planning_of(job: ResolvedJob) -> PlannerBehaviour:
    """How the job's program is planned."""
    return behaviour_of(job.runtime.engine, ROOM, DEFAULT)


def is_replicated(job: ResolvedJob) -> bool:
    """Whether every device holds all states: DDP."""
    return job.sharding is not None and job.sharding.kind == DDP
