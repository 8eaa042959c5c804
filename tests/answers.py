"""Answers without what costs more than all the rest, for tests that look at none of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from vramplan.answers import fit
from vramplan.planner.decision import decide
from vramplan.planner.replays import Replays
from vramplan.results import FitResult
from vramplan.values.textbook import AnyJob, TextbookJob


def answer(job: AnyJob) -> FitResult:
    """As `vramplan.answers.fit.answer`, but nothing is tried to make it fit."""
    return fit.answer(job) if isinstance(job, TextbookJob) else fit.describe(decide(job), with_remedies=False)


@contextmanager
def plainly() -> Iterator[None]:
    """Within, whoever asks for the answer of `fit` gets it without remedies, and estimates are left as they are."""
    whole = fit.answer

    def plain(
        job: AnyJob, larger_gpus: Any = fit.no_gpus, replays: Replays | None = None, typed: Any = None, **asked: Any
    ) -> FitResult:
        if isinstance(job, TextbookJob):
            return whole(job, larger_gpus, replays, typed)
        opening: Callable[[FitResult], None] | None = asked.get("opening")
        return fit.describe(decide(job, replays), with_remedies=False, opening=opening)

    with patch.object(fit, "answer", plain), patch("vramplan.answers.session.answer", plain):
        yield
