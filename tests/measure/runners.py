"""Runners that need no GPU: they answer from the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramplan.measure.apart import Reply, Request
from vramplan.measure.processes import Run
from vramplan.results.measure import CountedFigures

ENVIRONMENT = {
    "python": "3.12.1",
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "platform": "Linux",
    "allocator_settings": None,
    "gpu": "A card",
    "compute_capability": "8.0",
    "total_bytes": 2**35,
    "cuda": "13.0",
}
MEASURED = CountedFigures("fits", 2**30, 2**30 - 5, 2**30 + 2**21, 2**31, step_seconds=0.25, micro_steps=2)
OOM = CountedFigures("oom", 2**34, 2**34, 2**34, 2**34, oom_phase="backward")


class Runner:
    """Answers with the same figures, or with what `then` makes of the request; remembers what it was asked."""

    def __init__(self, figures: CountedFigures = MEASURED, then: Callable[[Request], Any] | None = None) -> None:
        self.figures, self.then = figures, then
        self.asked: list[Request] = []

    @property
    def names(self) -> list[str]:
        return [str(request.job["name"]) for request in self.asked]

    def __call__(self, request: Request, run: Run | None = None) -> Reply:
        self.asked.append(request)
        made = None if self.then is None else self.then(request)
        return Reply(made or self.figures, ENVIRONMENT)
