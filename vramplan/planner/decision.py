"""A judged job: what was chosen for it, the iteration that was judged and its replay."""

from __future__ import annotations

from vramplan.planner.choose import choose
from vramplan.planner.judge import Judge
from vramplan.planner.ladder import Choice
from vramplan.planner.replays import Replays
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.tuples import NamedTuple
from vramplan.values.job import Job


class Decision(NamedTuple):
    """A job, what was chosen for it, and who judged it."""

    job: Job
    judge: Judge
    choice: Choice

    @property
    def judged(self) -> Job:
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
        """The iteration that was judged."""
        rung = self.choice.rung
        return self.judge.setup(rung.placement, rung.schedule.accumulates, self.stage)

    @property
    def record(self) -> Record:
        """Its replay, valid at the chosen micro-batch."""
        rung = self.choice.rung
        one = rung.schedule.micro_batch_size == 1
        return self.judge.record(rung.placement, rung.schedule.accumulates, one, self.stage)

    @property
    def stage(self) -> int:
        """The number of the stage that was judged: of a pipeline the most loaded one."""
        rung = self.choice.rung
        schedule = rung.schedule
        return self.judge.stage_at(rung.placement, schedule.micro_batch_size, schedule.accumulates)


def decide(job: Job, replays: Replays | None = None, *, whole_ladder: bool = True) -> Decision:
    """Judge one job, choosing what it leaves open. Raises UsageError if the batch keys contradict each other.

    Without the `whole_ladder` a job that pins its checkpoints has no alternatives. `replays`: those of jobs before it.
    """
    judge = Judge(job, replays)
    choice = choose(job, judge, whole_ladder=whole_ladder)
    if judge.waits_for_steps:
        judge = judge.at_steps(choice.rung.schedule.gradient_accumulation_steps)
    return Decision(job, judge, choice)
