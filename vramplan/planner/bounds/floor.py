"""What a job needs at least, whatever its micro-batch and its steps: one replay instead of a search."""

from __future__ import annotations

from vramplan.planner.bounds.plain import has_pairs
from vramplan.planner.checkpoints import OPTIMAL
from vramplan.planner.choose import accumulation_of
from vramplan.planner.judge import Judge
from vramplan.planner.replays import Replays
from vramplan.planner.time.rates import Rates
from vramplan.planner.time.step import TimedStage, step_of
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import ZERO1, Split


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
    """The most that a job may have allocated, so that it fits for certain."""
    return _certain(Judge(job))


def _certain(judge: Judge) -> int:
    """The same by an estimate or by a simulation, whichever lets more pass: the answer may be of either."""
    return max(judge.limits.high, judge.most_certain_bytes)


def seconds_by_floor(
    job: ResolvedJob, replays: Replays, rates: Rates, most: int, *, accumulates: bool = False
) -> float:
    """Seconds that a sample takes at least at micro-batches above 1, by the replay that `floor_of` has made.

    It is the one of a step without accumulation, which launches no kernel more than others do, unless every schedule
    that may fit `accumulates`; 0.0 where that does not hold: ZeRO-1 fills its buckets in the last micro-step alone. The
    largest micro-batch that it has room for, and no larger than `most`, is the fastest; infinite where there is none.
    """
    strategy, split = job.activation_checkpointing, job.split or Split()
    if strategy is None or strategy == OPTIMAL or split.pipeline > 1 or job.offload or _fills_at_last(job):
        return 0.0
    judge, steps = Judge(job, replays), job.gradient_accumulation_steps
    record = judge.record(strategy, accumulates or (steps is not None and steps > 1), False)
    if has_pairs(record):
        return 0.0
    device = TimedStage(record, job.model.numbered_blocks, 1)
    accumulation = accumulation_of(job)
    states = record.static_bytes(1) if _holds_otherwise(job) else None
    schedules = [accumulation.for_micro(most)] if accumulation.free else accumulation.schedules()
    for schedule in schedules:
        micro = schedule.micro_batch_size
        needed = states if accumulation.free or states is not None else record.peak_bytes(micro)
        if 1 < micro <= most and (needed is None or needed <= _certain(judge)):
            found = step_of(job, device, micro, schedule.gradient_accumulation_steps, rates)
            return sum(found.seconds.values()) / schedule.global_batch_size
    return float("inf")


def _fills_at_last(job: ResolvedJob) -> bool:
    return job.sharding is not None and job.sharding.kind == ZERO1


def _holds_otherwise(job: ResolvedJob) -> bool:
    """Whether a step without accumulation may hold more than one with it: with ZeRO, no_sync or HSDP."""
    sharding = job.sharding
    return sharding is not None and bool(sharding.zero or sharding.no_sync or sharding.replicas > 1)


def floor_of(
    job: ResolvedJob, replays: Replays, *, small_first: bool = False, accumulates: bool = False
) -> Floor | None:
    """Those of a job that pins its checkpoints; None where that takes a search itself.

    A micro-batch of 1 has a replay of its own. It is looked at where the others do not fit, or with `small_first`
    before them: then one replay tells that nothing fits, and it takes two to tell what does.

    `accumulates`: every schedule that may fit has several micro-steps, though the job leaves them open.
    """
    strategy = job.activation_checkpointing
    if strategy is None or strategy == OPTIMAL:
        return None
    judge = Judge(job, replays)
    if judge.waits_for_steps:
        judge = judge.at_steps(1)  # the fewest micro-batches in flight
    given, steps = job.micro_batch_size, job.gradient_accumulation_steps
    accumulates = accumulates or (steps is not None and steps > 1)
    alone = given == 1 or (given is None and small_first)
    record = judge.record(strategy, accumulates, alone)
    states, most = record.static_bytes(1), _certain(judge)
    if steps is None and _holds_otherwise(job):
        return Floor(states + judge.outside_bytes, states, judge.usable_bytes, most)
    least = record.peak_bytes(1 if alone else given or 2)
    if given is None and not alone and least > most:
        least = judge.record(strategy, accumulates, True).peak_bytes(1)
    return Floor(states + judge.outside_bytes, least, judge.usable_bytes, most)
