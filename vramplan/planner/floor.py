"""What a job needs at least, whatever its micro-batch and its steps: one replay instead of a search."""

from __future__ import annotations

from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.judge import Judge
from vramplan.planner.replays import Replays
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob


class Floor(NamedTuple):
    """Lower bounds of what the device shows and of what is allocated, and what there is room for."""

    states_bytes: int  # what is alive all the time, with the context: no matter what is checkpointed
    allocated_bytes: int  # at the smallest micro-batch
    usable_bytes: int
    certain_bytes: int  # the most that may be allocated, so that the job fits for certain

    @property
    def is_met(self) -> bool:
        """Whether the job may fit for certain."""
        return self.allocated_bytes <= self.certain_bytes


def certain_bytes(job: ResolvedJob) -> int:
    """The most that a job may have allocated, so that it fits for certain by its estimate."""
    return Judge(job).limits.high


def floor_of(job: ResolvedJob, replays: Replays, *, small_first: bool = False) -> Floor | None:
    """Those of a job that pins its checkpoints; None where that takes a search itself.

    A micro-batch of 1 has a replay of its own. It is looked at where the others do not fit, or with `small_first`
    before them: then one replay tells that nothing fits, and it takes two to tell what does.
    """
    strategy = job.activation_checkpointing
    if strategy is None or strategy == OPTIMAL:
        return None
    judge = Judge(job, replays)
    if judge.waits_for_steps:
        judge = judge.at_steps(1)  # the fewest micro-batches in flight
    given, steps = job.micro_batch_size, job.gradient_accumulation_steps
    accumulates = steps is not None and steps > 1
    alone = given == 1 or (given is None and small_first)
    record = judge.record(strategy, accumulates, alone)
    states, most = record.static_bytes(1), judge.limits.high
    sharding = job.sharding
    # With ZeRO, no_sync or HSDP a step without accumulation may hold more than one with it.
    free = steps is None and sharding is not None and (sharding.zero or sharding.no_sync or sharding.replicas > 1)
    if free:
        return Floor(states + judge.outside_bytes, states, judge.usable_bytes, most)
    least = record.peak_bytes(1 if alone else given or 2)
    if given is None and not alone and least > most:
        least = judge.record(strategy, accumulates, True).peak_bytes(1)
    return Floor(states + judge.outside_bytes, least, judge.usable_bytes, most)
