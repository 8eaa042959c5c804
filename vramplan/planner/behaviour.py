"""How the runs of a training program are planned: what most do, for those that do otherwise to say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.engines import behaviour_of
from vramplan.replay.models.modules import SMOOTHED
from vramplan.values.job import Job
from vramplan.values.parallel import DDP, FSDP, Sharded

ROOM = "planner"

Sharing = tuple[dict[str, Any], str, Job]
"""A change in the words of the job format, what it costs, and the job that it makes."""


class PlannerBehaviour:
    """What a program may do differently; a subclass in its folder says what it does."""

    unplaced: tuple[str, str] | None = None  # why checkpoints are not placed by size, and what to do instead
    smoothed_loss: str = SMOOTHED  # the loss that smoothed labels make
    fsdp_without_sync: bool = False  # whether FSDP leaves the gradients of earlier micro-steps whole, by default

    def optimizer_of(self, job: Job) -> str:
        """The optimizer by the name that `replay.optimizers` has for it."""
        return f"{job.optimizer}-32bit" if job.fp32_states else job.optimizer

    def shared_states(self, base: Job) -> Iterator[Sharing]:
        """Of replicas under DDP: the single changes with which each device holds less."""
        assert base.sharding is not None
        if not base.sharding.bucket_views:
            views = base._replace(sharding=base.sharding._replace(bucket_views=True))
            cost = "none: gradients are views of the buckets that are summed"
            yield {"parallel": {"gradient_as_bucket_view": True}}, cost, views
        shards = Sharded(FSDP, base.data_parallel_size, no_sync=self.fsdp_without_sync)
        change: dict[str, Any] = {"sharding": FSDP}
        if base.sharding.bucket_views:
            change["gradient_as_bucket_view"] = False
        cost = "each block's weights are gathered when they are used"
        yield {"parallel": change}, cost, base._replace(sharding=shards)


DEFAULT = PlannerBehaviour()


def planning_of(job: Job) -> PlannerBehaviour:
    """How the job's program is planned."""
    return behaviour_of(job.runtime.engine, ROOM, DEFAULT)


def is_replicated(job: Job) -> bool:
    """Whether every device holds all states: DDP."""
    return job.sharding is not None and job.sharding.kind == DDP
