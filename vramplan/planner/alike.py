"""Records with every block, each played for all micro-batches that it is valid for.

A step that is not compiled has one for all micro-batches above 1. The compiler decides by sizes what it stores and what
it writes over (vramplan/replay/compiled.py), so a compiled step has one for all micro-batches at which every size
compares as it does there (vramplan/replay/compared_sizes.py).
"""

from __future__ import annotations

from vramplan.planner.reserving import records_at
from vramplan.replay.caching.course import Records
from vramplan.replay.models import iteration_of
from vramplan.replay.models.parts import takes_samples_apart
from vramplan.replay.setup import Setup
from vramplan.replay.step import earlier_of, stands_for
from vramplan.tuples import NamedTuple
from vramplan.values.parallel import DDP

MOST_SPANS = 3  # of records that are kept of a setup: those of 1, and of both sides of what a search looks for


class AlikeSpan(NamedTuple):
    """Micro-batches that have the same records: from a first to a last one, but for those `apart`."""

    first: int
    last: int
    apart: frozenset[int]
    records: tuple[Records, ...]

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
        """A new span."""
        if not self.is_shared or micro == 1:
            return AlikeSpan(micro, micro, frozenset(), records_at(self.setup, micro, varied=self.varied))
        records = records_at(self.setup, micro, varied=self.varied, shared=True)
        compared = [record.compared for pair in records for record in pair if record is not None]
        if not all(one is not None and one.are_lines for one in compared):
            self.is_shared = False
            return self._found(micro)
        known = [one for one in compared if one is not None]
        first, last = max(one.first for one in known), min(one.last for one in known)
        return AlikeSpan(first, last, frozenset().union(*(one.apart for one in known)), records)


def is_shared(setup: Setup) -> bool:
    """Whether micro-batches may share the records of a setup of which each has its own in `stands_for`.

    Iterations of runtimes, stages of a pipeline and code that takes samples one by one have others at each of them;
    what is before the last micro-step under `no_sync` is played for one micro-batch alone.
    """
    name = setup.model.family
    has_own = iteration_of(name, in_pipeline=setup.stage is not None) is not None or takes_samples_apart(name)
    is_ddp = setup.sharding is not None and setup.sharding.kind == DDP
    return setup.compile and setup.stage is None and not has_own and (is_ddp or earlier_of(setup) is None)
