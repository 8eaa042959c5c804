"""The sizes that the placement of checkpoints needs, read off replays of a few blocks.

Three units in a row show the first and every later one, whatever the number of blocks; which is how a segment of each
length costs one short replay, and only if the search asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.models.modules import Segment
from vramplan.planner.optimal import Frame, Piece
from vramplan.tape.pieces import Outside, Unit, take_apart
from vramplan.tape.record import Record

UNITS = 3  # first, a later one, and one that stands for the last, which is like every later one

Replay = Callable[[tuple[Segment, ...]], Record]
"""The record of a model that consists of these segments, everything else being the job's."""


class Probe(NamedTuple):
    """One short replay, taken apart."""

    units: list[Unit]
    outside: Outside
    recomputed_flops: int


class ProbedSizes:
    """`optimal.Sizes` of a model whose blocks are alike, at one micro-batch."""

    def __init__(self, replay: Replay, whole: Record, blocks: int, batch: int) -> None:
        """`whole` is the record of the whole model with every block stored."""
        self._replay, self._batch, self.blocks = replay, batch, blocks
        self._probes: dict[tuple[Segment, ...], Probe] = {}
        self._segments: dict[tuple[int, bool, bool], Piece] = {}
        self._frames: dict[int, Frame] = {}
        _, outside = take_apart(whole, batch)
        peaks = whole.peaks(batch)
        static = whole.static_bytes(batch)
        self.start_bytes = static + outside.before_net
        end = static + whole.net_bytes(batch, ("forward", "backward"))
        inner = self._probe(Segment(1, UNITS, False)).units[1]
        self._gradient = inner.forward_net + inner.leaving + inner.backward_net
        self.held_bytes = end - outside.after_net - self._gradient * blocks
        self.floor_bytes = max(static + outside.before_top, end - outside.after_net + outside.after_top, peaks["step"])
        self._inner = self._piece(inner, 1, 0)
        self._first = self._piece(self._probe(Segment(1, UNITS, False)).units[0], 1, 0)

    def gradient_bytes(self, first: int, last: int) -> int:
        """What the backward of these blocks leaves."""
        return self._gradient * (last - first + 1)

    def stored(self, block: int) -> Piece:
        """A block that is no part of a checkpoint."""
        return self._inner if block else self._first

    def segment(self, first: int, last: int, *, earliest: bool) -> Piece:
        """These blocks as one checkpoint."""
        key = (last - first + 1, first == 0, earliest)
        found = self._segments.get(key)
        if found is None:
            found = self._segments[key] = self._make(*key)
        return found

    def frame(self, kind: int) -> Frame:
        """What surrounds the blocks."""
        found = self._frames.get(kind)
        if found is None:
            runs = (
                (Segment(1, UNITS, False),),
                (Segment(1, 1, False), Segment(UNITS - 1, 1, True)),
                (Segment(UNITS, 1, True),),
            )[kind]
            outside = self._probe(*runs).outside
            found = self._frames[kind] = Frame(outside.between_top, outside.loss_net, outside.loss_top)
        return found

    def _make(self, length: int, opens: bool, earliest: bool) -> Piece:
        probe = self._probe(Segment(UNITS, length, True))
        flops = probe.recomputed_flops // UNITS
        if opens:
            return self._piece(probe.units[0], length, flops)
        piece = self._piece(probe.units[1], length, flops)
        if earliest:  # it holds what all checkpoints share, which does not depend on its length
            mixed = self._probe(Segment(1, 1, False), Segment(UNITS - 1, 1, True)).units
            shared = mixed[2].backward_net - mixed[1].backward_net
            piece = piece._replace(kept_bytes=piece.kept_bytes + shared)
        return piece

    def _piece(self, unit: Unit, length: int, flops: int) -> Piece:
        kept = self._gradient * length - unit.backward_net
        return Piece(unit.forward_net, unit.forward_top, kept, unit.backward_top, flops)

    def _probe(self, *segments: Segment) -> Probe:
        found = self._probes.get(segments)
        if found is None:
            record = self._replay(segments)
            units, outside = take_apart(record, self._batch)
            found = self._probes[segments] = Probe(units, outside, record.flops["recompute"])
        return found
