"""The answer about a job without its remedies, which cost more than all the rest, for tests that look at none."""

from __future__ import annotations

from vramplan.answers import fit
from vramplan.planner.decision import decide
from vramplan.results import FitResult
from vramplan.values.textbook import AnyJob, TextbookJob


def answer(job: AnyJob) -> FitResult:
    """As `vramplan.answers.fit.answer`, but nothing is tried to make it fit."""
    return fit.answer(job) if isinstance(job, TextbookJob) else fit.describe(decide(job), with_remedies=False)
