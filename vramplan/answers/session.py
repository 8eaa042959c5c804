"""A session: answers about many jobs, with nothing done twice.

A process of `vramplan` answers one command, and a program may ask for thousands of answers. What they share is kept
here: the replays of iterations. An answer of a session that has answered
before is the answer of a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock

from vramplan.answers.fit import answer, describe, no_gpus
from vramplan.planner.decision import decide
from vramplan.planner.replays import MOST_RECORDS, Replays
from vramplan.results import FitResult
from vramplan.results.figures import Figures, PeakFigures
from vramplan.values.machine import Gpu
from vramplan.values.textbook import AnyJob, TextbookJob


class Session:
    """The replays of the answers so far. Threads may share it: they are answered one after another.

    `most_records`: replays that are kept, of one to two megabytes for a large model; the least recently used go.
    """

    def __init__(self, most_records: int = MOST_RECORDS) -> None:
        self.replays = Replays(most_records)
        self._lock = RLock()

    def answer(self, job: AnyJob, larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus) -> FitResult:
        """The whole answer about one job; see `vramplan.answers.fit.answer`."""
        with self._lock:
            return answer(job, larger_gpus, self.replays)

    def compared(self, job: AnyJob) -> FitResult:
        """The answer without what a comparison never shows: remedies, and alternatives to what a job pins."""
        with self._lock:
            if isinstance(job, TextbookJob):
                return answer(job, no_gpus, self.replays)
            return describe(decide(job, self.replays, whole_ladder=False), with_remedies=False)

    def figures(self, job: AnyJob) -> Figures:
        """The figures that a gate looks at. Raises UsageError as `answer` does."""
        with self._lock:
            if isinstance(job, TextbookJob):
                return figures_of(answer(job, no_gpus, self.replays))
            from vramplan.planner.verdict import verdict_of  # only gates pay for it

            peak, verdict, usable = verdict_of(job, self.replays)
        return Figures(
            verdict=verdict,
            capacity_bytes=job.gpu.capacity_bytes,
            usable_bytes=usable,
            headroom_bytes=usable - peak.device,
            utilization=round(peak.device / usable, 6) if usable > 0 else float(peak.device),
            peak=PeakFigures(peak.allocated, peak.reserved, peak.device, peak.low, peak.high),
        )


def figures_of(result: FitResult) -> Figures:
    """Those of a whole answer."""
    peak = result.peak
    return Figures(
        verdict=result.verdict,
        capacity_bytes=result.capacity_bytes,
        usable_bytes=result.usable_bytes,
        headroom_bytes=result.headroom_bytes,
        utilization=result.utilization,
        peak=PeakFigures(peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, peak.low_bytes, peak.high_bytes),
    )
