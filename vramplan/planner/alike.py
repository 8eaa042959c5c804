"""Records with every block, each played for all micro-batches that it is valid for.

A step that is not compiled has one for all micro-batches above 1. The compiler decides by sizes what it stores and what
it writes over (vramplan/replay/compiled.py), so a compiled step has one for each micro-batch between two of which all
sizes compare alike: they are lines over the micro-batch, and so is the difference of two of them. What is as large as
another at both ends, or at none, is so between them. What differs at both ends is equal between them at most at one
micro-batch, where the line is 0, and that has records of its own. If the first comparison comes out the same, so does
the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramplan.planner.reserving import records_at
from vramplan.replay.caching.course import Records
from vramplan.replay.models import iteration_of
from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import earlier_of, stands_for
from vramplan.tuples import NamedTuple
from vramplan.values.parallel import DDP

MOST_SPANS = 3  # of records that are kept of a setup: those of 1, and of both sides of what a search looks for
FAR = 2  # how many times further a second replay looks than what was asked for

AS_PLAYED = (
    *("events", "fixed", "per_sample", "operators", "categories", "phases", "saved_at", "states", "carried"),
    *("told_of_sizes", "has_lines", "not_affine", "relabelled", "summed", "turned", "elsewhere", "unjoined"),
    *("left_whole", "weight_bytes", "load_bytes", "state_bytes", "stated_behind", "start", "awaited", "waits"),
)
"""What is the same of two replays that compare all sizes alike."""


class AlikeSpan(NamedTuple):
    """Micro-batches that have the same records, but for those `apart`, at which two sizes are equal."""

    first: int
    last: int
    records: tuple[Records, ...]
    apart: frozenset[int] = frozenset()

    def has(self, micro: int) -> bool:
        """Whether the records are those of a micro-batch."""
        return self.first <= micro <= self.last and micro not in self.apart


class AlikeRecords:
    """What an allocator plays of one setup: of each length, the whole one last, as `records_at` has it."""

    def __init__(self, setup: Setup, *, varied: bool) -> None:
        self.setup, self.varied = setup, varied
        self.is_shared = is_shared(setup)
        self.spans: list[AlikeSpan] = []  # the last one that was of use at the end

    def at(self, micro: int) -> tuple[Records, ...]:
        """The records of a micro-batch."""
        one = stands_for(self.setup, micro)
        found = self._known(one)
        if found is None:
            found = self._found(one)
        else:
            self.spans.remove(found)
        self.spans.append(found)
        del self.spans[:-MOST_SPANS]
        return found.records

    def _known(self, micro: int) -> AlikeSpan | None:
        return next((span for span in self.spans if span.has(micro)), None)

    def _found(self, micro: int) -> AlikeSpan:
        """A new span, or one that reaches further now.

        A search that goes beyond a span comes back most often, so where it goes is looked at from beyond.
        """
        if not self.is_shared or micro == 1 or any(micro in span.apart for span in self.spans):
            return AlikeSpan(micro, micro, records_at(self.setup, micro, varied=self.varied))
        near = min(
            (span for span in self.spans if span.first > 1),
            key=lambda span: max(span.first - micro, micro - span.last),
            default=None,
        )
        tried = (micro,) if near is None else (_beyond(micro, near), micro)
        for at in dict.fromkeys(tried):
            records = records_at(self.setup, at, varied=self.varied, shared=True)
            if not all(record.has_lines for record in _each(records)):
                self.is_shared = False
                return self._found(micro)
            if near is None:
                continue
            apart = _apart(records, near.records)
            if apart is not None:
                self.spans.remove(near)
                found = AlikeSpan(min(at, near.first), max(at, near.last), near.records, near.apart | apart)
                if found.has(micro):
                    return found
                self.spans.append(found)
                return self._found(micro)
        return AlikeSpan(micro, micro, records)


def is_shared(setup: Setup) -> bool:
    """Whether micro-batches may share the records of a setup of which each has its own in `stands_for`.

    Iterations of runtimes, stages of a pipeline and code that takes samples one by one have others at each of them;
    what is before the last micro-step under `no_sync` is played for one micro-batch alone.
    """
    name = setup.model.family
    has_own = iteration_of(name, in_pipeline=setup.stage is not None) is not None or takes_samples_apart(name)
    is_ddp = setup.sharding is not None and setup.sharding.kind == DDP
    return setup.compile and setup.stage is None and not has_own and (is_ddp or earlier_of(setup) is None)


def _beyond(micro: int, near: AlikeSpan) -> int:
    return micro * FAR if micro > near.last else max(2, micro // FAR)


def _each(records: Iterable[Records]) -> Iterable[Record]:
    return (record for pair in records for record in pair if record is not None)


def _apart(records: tuple[Records, ...], others: tuple[Records, ...]) -> frozenset[int] | None:
    """The micro-batches between two that have other records than both; None where theirs are not alike."""
    found: set[int] = set()
    for one, other in zip(_each(records), _each(others), strict=True):
        if any(getattr(one, what) != getattr(other, what) for what in AS_PLAYED):
            return None
        if len(one.differences) != len(other.differences):
            return None
        for here, there in {*zip(one.differences, other.differences, strict=True)}:
            if bool(here) is not bool(there):
                return None
            if here < 0 < there or there < 0 < here:
                far, rest = divmod((other.batch - one.batch) * here, here - there)
                if not rest:
                    found.add(one.batch + far)
    return frozenset(found)
