"""The timeline of a judged job: live memory over the whole step at the micro-batch that was judged."""

from __future__ import annotations

from vramplan.answers.fit import describe
from vramplan.planner.decision import Decision
from vramplan.replay.history import history
from vramplan.results.timeline import Timeline


def timeline(decision: Decision) -> Timeline:
    """Every level of one steady-state step of the judged job, by component, and what the GPU has room for.

    The highest level is the peak of `describe`, to the byte.
    """
    micro = decision.choice.rung.schedule.micro_batch_size
    return Timeline(
        fit=describe(decision, with_remedies=False),
        history=history(decision.judge.replays.shown(decision.setup, micro), micro),
        allocated_limit_bytes=decision.judge.limits.device,
    )
