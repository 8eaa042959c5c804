"""A judged job: what was chosen for it, the iteration that was judged and its replay."""

from __future__ import annotations

from vramplan.planner.choose import choose, choose_simulated, looked_through
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Choice
from vramplan.planner.replays import Replays
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import earlier_of
from vramplan.results import DOES_NOT_FIT, FITS, TIGHT
from vramplan.tuples import NamedTuple
from vramplan.values.job import ResolvedJob
from vramplan.values.parallel import DDP


class Decision(NamedTuple):
    """A job, what was chosen for it, and who judged it."""

    job: ResolvedJob
    judge: Judge
    choice: Choice

    @property
    def judged(self) -> ResolvedJob:
        """The job with every choice made."""
        rung = self.choice.rung
        return self.job._replace(
            micro_batch_size=rung.schedule.micro_batch_size,
            gradient_accumulation_steps=rung.schedule.gradient_accumulation_steps,
            global_batch_size=rung.schedule.global_batch_size,
            activation_checkpointing=rung.strategy,
        )

    @property
    def setup(self) -> Setup:
        """The iteration that was judged: of micro-steps that differ, the one with the peak."""
        rung = self.choice.rung
        found: Setup | None = self.judge.setup(rung.placement, rung.schedule.accumulates, self.stage)
        record: Record | None = self.record
        told = self.record.at_peak(rung.schedule.micro_batch_size)
        while record is not told and record is not None and found is not None:
            record, found = record.earlier, earlier_of(found)
        assert found is not None
        return found

    @property
    def record(self) -> Record:
        """Its replay, valid at the chosen micro-batch."""
        rung = self.choice.rung
        one = rung.schedule.micro_batch_size == 1
        return self.judge.record(rung.placement, rung.schedule.accumulates, one, self.stage)

    @property
    def events(self) -> int:
        """Allocations and frees of an iteration."""
        plays = 2 if self.choice.rung.schedule.accumulates else 1
        return self.record.events_of_every_copy * plays

    @property
    def stage(self) -> int:
        """The number of the stage that was judged: of a pipeline the most loaded one."""
        rung = self.choice.rung
        schedule = rung.schedule
        return self.judge.stage_at(rung.placement, schedule.micro_batch_size, schedule.accumulates)


ALWAYS = 0
IN_DOUBT = 80
"""From which part of the usable memory on an estimate is looked at closer, in percent.

Below `IN_DOUBT` a run would have to reserve a quarter more than its estimate to come to another verdict. Of 330 runs
that were drawn at random two did (tests/measured/estimate.py).
"""
MOST_EVENTS = 12_500
"""Allocations and frees of a short iteration: its simulation takes about 0.1 s more, 6 to 11 microseconds for each.

That is the replay of every block and two or three iterations of the allocator; of accumulation a second micro-step too.
"""
TIMES_IF_OPEN = 5
"""How many times as many where the estimate leaves open whether it fits, or says little: that is worth a few tenths of
a second. Where devices share states, what is gathered and reduced lies between what stays: of five published runs of so
many events the estimate was 17 % below to 4 % above the simulation, of others under ZeRO 3 up to 24 % below. Where
weights are quantized, what is made of them comes and goes between what stays: of ten published runs of so many events
it was 17 % below to 1 % above.
"""


def decide(
    job: ResolvedJob,
    replays: Replays | None = None,
    *,
    whole_ladder: bool = True,
    closer_from: int | None = None,
    surely: bool = False,
) -> Decision:
    """Judge one job, choosing what it leaves open. Raises UsageError if the batch keys contradict each other.

    Without the `whole_ladder` a job that pins its checkpoints has no alternatives. `replays`: those of jobs before it.
    `closer_from`: as in `looked_at`, as is `surely`; None leaves every estimate as it is.
    """
    judge = Judge(job, replays)
    choice = choose(job, judge, whole_ladder=whole_ladder, surely=surely)
    if judge.waits_for_steps:
        judge = judge.at_steps(choice.rung.schedule.gradient_accumulation_steps)
    decision = Decision(job, judge, choice)
    return looked_at(decision, closer_from, whole_ladder=whole_ladder, surely=surely)


def shares_states(job: ResolvedJob) -> bool:
    """Whether data-parallel devices each have a part of the states."""
    return job.sharding is not None and job.sharding.kind != DDP


def is_worth_a_look(decision: Decision, closer_from: int = ALWAYS) -> bool:
    """Whether an estimate is to be looked at with a simulated allocator, from so many percent of the usable memory on.

    From `ALWAYS` on: whether `fit` does.
    """
    job, judge, choice = decision
    if job.allocator is not None or job.allocator_offered is None or not job.runtime.caches:
        return False
    if choice.rung.peak.device * 100 < judge.usable_bytes * closer_from:
        return False
    if choice.rung.verdict == DOES_NOT_FIT:
        return False
    return decision.events <= most_events(job, is_open=choice.rung.verdict == TIGHT)


def most_events(job: ResolvedJob, *, is_open: bool) -> int:
    """Of how many events a short iteration has at most. `is_open`: the estimate leaves open whether it fits."""
    is_worth_more = is_open or shares_states(job) or job.quantization is not None
    return MOST_EVENTS * (TIMES_IF_OPEN if is_worth_more else 1)


def looked_at(
    decision: Decision, closer_from: int | None, *, whole_ladder: bool = True, surely: bool = False
) -> Decision:
    """The same decided with a simulated allocator, where that takes no time and the job leaves it open.

    `closer_from` is the part of the usable memory, in percent, that the estimate takes at least; for None nothing is
    simulated. What is allocated alone decides about a job that does not fit by its estimate: it is left as it is.
    `surely`: only a decision that fits for certain is of use; another one may say so of a smaller part of the ladder.
    """
    if closer_from is None or not is_worth_a_look(decision, closer_from):
        return decision
    job, judge, choice = decision
    closer = job._replace(allocator=job.allocator_offered)
    if judge.waits_for_steps:  # a pipeline has other figures with each number of steps
        return decide(closer, judge.replays, whole_ladder=whole_ladder, surely=surely)
    own = Judge(closer, judge.replays)
    found = choose_simulated(own, choice.accumulation, choice.ladder, whole_ladder=whole_ladder, surely=surely)
    if found.rung.verdict == FITS or len(choice.ladder) == len(looked_through(job, whole_ladder=whole_ladder)):
        return Decision(closer, own, found)
    return decide(
        closer, judge.replays, whole_ladder=whole_ladder, surely=surely
    )  # what was not looked at for the estimate may fit
