"""A session: answers about many jobs, with nothing done twice.

A process of `vramplan` answers one command, and a program may ask for thousands of answers. What they share is kept
here: the replays of iterations and the profiles of files. An answer of a session that has answered before is the answer
of a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from vramplan.answers.brief import Brief, brief
from vramplan.answers.fit import answer, answered, describe, no_gpus
from vramplan.catalog import reading
from vramplan.catalog.reading import MOST_FILES, FileMemo
from vramplan.planner import replays
from vramplan.planner.decision import ALWAYS, IN_DOUBT, decide
from vramplan.planner.replays import MOST_RECORDS, Replays
from vramplan.planner.verdict import verdict_of
from vramplan.results import FitResult
from vramplan.results.figures import Figures, PeakFigures
from vramplan.values.job import ResolvedJob
from vramplan.values.machine import Gpu
from vramplan.values.textbook import AnyJob, TextbookJob

if TYPE_CHECKING:
    from vramplan.job.typed import Typed

_open: ContextVar[Session | None] = ContextVar("session", default=None)


class Session:
    """What the answers so far have in common. Threads may share it: they are answered one after another.

    `most_records`: replays that are kept, of one to two megabytes for a large model. `most_files`: profiles and other
    files that are kept; each is read again when it has changed. Of both the least recently used go.
    """

    def __init__(self, most_records: int = MOST_RECORDS, most_files: int = MOST_FILES) -> None:
        self.replays = Replays(most_records)
        self.files = FileMemo(most_files)
        self._lock = RLock()

    @contextmanager
    def open(self) -> Iterator[Session]:
        """Within, whatever this thread asks, without naming a session, uses this one.

        Other threads are not concerned. Who asks rooms below `answers` inside has the session to himself.
        """
        token = _open.set(self)
        try:
            with replays.opened(self.replays), reading.opened(self.files):
                yield self
        finally:
            _open.reset(token)

    def fit(
        self, keys: Mapping[str, Any], profile_dirs: Sequence[Path] = (), *, largest: str | None = None
    ) -> FitResult:
        """The answer about the job that `keys` describe in the words of the job format. Raises InputError.

        `largest`: what to solve for: sequence, micro-batch, rank or layers.
        """
        with self._lock, self.open():
            return answered(keys, profile_dirs, largest, self.replays)

    def answer(
        self,
        job: AnyJob,
        larger_gpus: Callable[[], Iterable[Gpu]] = no_gpus,
        typed: Callable[[], Typed] | None = None,
    ) -> FitResult:
        """The whole answer about one job; see `vramplan.answers.fit.answer`."""
        with self._lock, self.open():
            return answer(job, larger_gpus, self.replays, typed, closer_from=IN_DOUBT, remedies_from=ALWAYS)

    def compared(self, job: AnyJob) -> FitResult:
        """The answer without what a comparison never shows: remedies, and alternatives to what a job pins."""
        with self._lock, self.open():
            if isinstance(job, TextbookJob):
                return answer(job, no_gpus, self.replays)
            return describe(decide(job, self.replays, whole_ladder=False, closer_from=IN_DOUBT), with_remedies=False)

    def brief(self, job: ResolvedJob, *, closer_from: int | None = None, of_misfits: bool = True) -> Brief:
        """What a comparison shows of a job; the others as in `answers.brief`. Raises UsageError as `answer` does."""
        with self._lock, self.open():
            return brief(job, self.replays, closer_from=closer_from, of_misfits=of_misfits)

    def figures(self, job: AnyJob) -> Figures:
        """The figures that a gate looks at. Raises UsageError as `answer` does."""
        with self._lock, self.open():
            if isinstance(job, TextbookJob):
                return figures_of(answer(job, no_gpus, self.replays))
            if job.length.has_limits:
                decision = decide(job, self.replays, whole_ladder=False, closer_from=IN_DOUBT)
                return figures_of(describe(decision, with_remedies=False))

            peak, verdict, usable = verdict_of(job, self.replays)
        return Figures(
            verdict=verdict,
            capacity_bytes=job.gpu.capacity_bytes,
            usable_bytes=usable,
            headroom_bytes=usable - peak.device,
            utilization=round(peak.device / usable, 6) if usable > 0 else float(peak.device),
            peak=PeakFigures(peak.allocated, peak.reserved, peak.device, peak.low, peak.high),
        )


def opened() -> Session | None:
    """The session that is open in this thread, if one is."""
    return _open.get()


def at_hand(most_records: int = MOST_RECORDS) -> Session:
    """The session that is open in this thread, if it keeps as many replays; else a new one, which does."""
    found = _open.get()
    return found if found is not None and found.replays.most_records >= most_records else Session(most_records)


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
        broken_limits=result.broken_limits,
    )
