"""The sizes that the placement of checkpoints needs, read off replays of a few blocks.

A few units in a row show the first and every later one, whatever the number of blocks; which is how a segment of each
length costs one short replay, and only if the search asks for it. What pieces hold together is read off replays of the
whole model, each with a placement that shows one step of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vramplan.planner.checkpoints import segments_of, spelled
from vramplan.planner.placement.optimal import Piece, Placement, Shared, Surroundings
from vramplan.replay.models.modules import Segment
from vramplan.replay.pieces import OutsideBytes, UnitBytes, take_apart, units_of
from vramplan.replay.record import Record
from vramplan.replay.tensors import ALLOCATOR_BLOCK_BYTES
from vramplan.tuples import NamedTuple

Replay = Callable[[tuple[Segment, ...]], Record]
"""The record of a model that consists of these segments, everything else being the job's."""


class Probe(NamedTuple):
    """One replay, taken apart."""

    units: list[UnitBytes]
    outside: OutsideBytes
    recomputed_flops: int
    first_blocks: list[int]  # of each unit


class FoundBefore(NamedTuple):
    """What a piece finds of those before it.

    A checkpoint holds all that a stored block of its kind does, and the arguments of its blocks too. `opens` says that
    the first block is in a checkpoint, which holds the model's embeddings. `returned` is what the last piece is, where
    the loop keeps what it returned.
    """

    opens: bool
    kinds: frozenset[tuple[object, bool]]  # kinds of blocks, and whether one of them is in a checkpoint
    returned: str = ""


STORED, SINGLE, LONG = "stored", "single", "long"  # pieces: a stored block, a checkpoint of one block or of several
NOTHING = FoundBefore(False, frozenset())
OUTSIDE = (0, 0)  # of all units, where a record says what is computed again in which


ON_A_LINE = (4, 8)  # blocks of the segments from which those of others are told; shorter ones are replayed
COARSE_BYTES = 1 << 26  # a search among figures that do not add up to the byte looks no closer


class ProbedSizes:
    """`optimal.PlacementSizes` of a model whose blocks differ in nothing but what they share, at one micro-batch.

    Where a gradient waits for that of the block before it, as LOMO's do, the last block finds one of the head, which
    has another size than those of blocks. So the piece that ends the model is measured at that place.
    """

    def __init__(
        self,
        replay: Replay,
        whole: Record,
        kinds: tuple[object, ...],
        batch: int,
        *,
        holds_outputs: bool = False,
        waits: bool = False,
        seen: dict[object, Placement] | None = None,
        slow: bool = False,
    ) -> None:
        """`whole` is the record of the whole model with every block stored, `kinds` says which are alike.

        `holds_outputs`: the loop keeps what a block returned until the next has returned. `waits`: a gradient is there
        until that of the block before it is. `seen` remembers placements from one micro-batch to the next, so that the
        same replays serve all. `slow`: a replay plays every block, and figures of longer segments are nearly
        those on a line.
        """
        self._replay, self._batch, self.blocks = replay, batch, len(kinds)
        self._kinds, self._holds_outputs, self._waits = kinds, holds_outputs, waits
        # the first unit, one that stands for the last, and between them more than there are other kinds, even if a
        # longer model has one more: so one of them holds nothing for the first time
        self._units = 3 + len(set(kinds))
        self._seen, self._slow = {} if seen is None else seen, slow
        self._shown = self.blocks  # how many show what pieces find; where all are of one kind, as few as show any row
        if slow and len(set(kinds)) == 1:
            self._shown = min(self.blocks, 2 * self._units)
        self._probes: dict[tuple[Segment, ...], Probe] = {}
        self._segments: dict[tuple[int, bool], Piece] = {}
        self._endings: dict[tuple[int, bool], Piece] = {}
        self._frames: dict[Shared, Surroundings] = {}
        self._added: dict[tuple[FoundBefore, frozenset[tuple[object, bool]]], int] = {}
        self._after: dict[tuple[FoundBefore, int, int, bool], FoundBefore] = {}
        _, outside = take_apart(whole, batch)
        peaks = whole.peaks(batch)
        static = whole.static_bytes(batch)
        self.start_bytes = static + outside.before_net
        end = static + whole.net_bytes(batch, ("forward", "backward"))
        stored = self._probe(Segment(1, self._units, False))
        inner = _plain(stored.units)
        # a gradient that all blocks add to, as that of DeBERTa's relative positions, is there from the last one on
        added_to = len(set(kinds)) == 1 and stored.units[-1].backward_net > inner.backward_net
        self._waits = waits = waits or added_to
        self._gradient = inner.forward_net + inner.leaving + inner.backward_net
        self.held_bytes = end - outside.after_net - self._gradient * self.blocks
        self.floor_bytes = max(static + outside.before_top, end - outside.after_net + outside.after_top, peaks["step"])
        self._inner = self._piece(inner, 1, 0)
        self._first = self._piece(stored.units[0], 1, 0)
        self._returned = {"": 0, STORED: 0, SINGLE: 0, LONG: 0}
        if holds_outputs:
            for name, run in ((SINGLE, Segment(2, 1, True)), (LONG, Segment(1, 2, True))):
                after = self._probe(run, Segment(1, 2, False)).units[-2]
                self._returned[name] = inner.forward_net - after.forward_net
        self.longer_needs_more = not waits
        self.most_returned_bytes = max(self._returned.values())
        self.nothing: Shared = NOTHING
        self.stored_bytes: int | None = None
        self.grain_bytes = COARSE_BYTES if slow else ALLOCATOR_BLOCK_BYTES

    def reach(self, first: int) -> int:
        """The last block: there is one stack."""
        return self.blocks - 1

    def gradient_bytes(self, first: int, last: int) -> int:
        """What the backward of these blocks leaves."""
        return self._gradient * (last - first + 1)

    def stored(self, block: int, shared: Shared | None) -> Piece:
        """A block that is no part of a checkpoint."""
        if not block:
            return self._ending(1, False, opens=True) if self._ends(block) else self._first
        piece = self._plain_stored(block)
        return piece if shared is None else self._shared(piece, block, block, shared, checkpoint=False)

    def segment(self, first: int, last: int, shared: Shared | None) -> Piece:
        """These blocks as one checkpoint."""
        if not first:
            return self._opening(last)
        piece = self._plain_segment(first, last)
        return piece if shared is None else self._shared(piece, first, last, shared, checkpoint=True)

    def after(self, shared: Shared, first: int, last: int, *, checkpoint: bool) -> Shared:
        """What a piece after these blocks finds."""
        assert isinstance(shared, FoundBefore)
        key = (shared, first, last, checkpoint)
        found = self._after.get(key)
        if found is None:
            kinds = shared.kinds | self._new(shared, first, last, checkpoint=checkpoint)
            returned = "" if not self._holds_outputs else SINGLE if last == first else LONG
            returned = STORED if returned and not checkpoint else returned
            found = self._after[key] = FoundBefore(checkpoint if first == 0 else shared.opens, kinds, returned)
        return found

    def frame(self, shared: Shared) -> Surroundings:
        """What surrounds the blocks, read off a placement that ends with it."""
        found = self._frames.get(shared)
        if found is None:
            assert isinstance(shared, FoundBefore)
            outside = self._probe(*segments_of(spelled(self._ending_with(shared)), self._shown)).outside
            found = self._frames[shared] = Surroundings(outside.between_top, outside.loss_net, outside.loss_top)
        return found

    def least_frame(self) -> Surroundings:
        """The surroundings of stored blocks alone, which hold least of what is shared; and the least loss."""
        stored = (Segment(1, self._units, False),)
        single = (Segment(self._units, 1, True),)
        mixed = (Segment(1, 1, False), Segment(self._units - 1, 1, True))
        found = [self._probe(*run).outside for run in (stored, single, mixed)]
        loss = max(found, key=lambda one: one.loss_net - one.loss_top)
        return Surroundings(min(one.between_top for one in found), loss.loss_net, loss.loss_top)

    def _new(self, shared: FoundBefore, first: int, last: int, *, checkpoint: bool) -> frozenset[tuple[object, bool]]:
        """What a piece holds that none before it does."""
        kinds = set(self._kinds[first : last + 1])
        holds = {(kind, False) for kind in kinds} | ({(kind, True) for kind in kinds} if checkpoint else set())
        return frozenset(holds) - shared.kinds

    def _shared(self, piece: Piece, first: int, last: int, shared: Shared, *, checkpoint: bool) -> Piece:
        """A piece with what it is the first to hold, and less what the loop kept of the one before it."""
        assert isinstance(shared, FoundBefore)
        new = self._new(shared, first, last, checkpoint=checkpoint)
        if new:
            key = (shared._replace(returned=""), new)
            added = self._added.get(key)
            if added is None:
                added = self._added[key] = self._measured(key[0], new, first, last, checkpoint=checkpoint)
            piece = piece._replace(kept_bytes=piece.kept_bytes + added)
        if self._holds_outputs:
            own = SINGLE if first == last else LONG
            kept = self._returned[own if checkpoint else STORED] - self._returned[shared.returned]
            piece = piece._replace(forward_bytes=piece.forward_bytes + kept)
        return piece

    def _measured(
        self, shared: FoundBefore, new: frozenset[tuple[object, bool]], first: int, last: int, *, checkpoint: bool
    ) -> int:
        """Bytes of what a piece is the first to hold, in a placement where it finds just this."""
        placement = self._seen.get((shared, new))
        if placement is None:
            placement = (*self._showing(shared, first), *([(first, last)] if checkpoint else []))
            self._seen[shared, new] = placement
        if checkpoint:
            first, last = placement[-1]
        probe = self._probe(*segments_of(spelled(placement), max(self._shown, min(last + 2, self.blocks))))
        at = probe.first_blocks.index(first)
        plain = self._plain_segment(first, last) if checkpoint else self._plain_stored(first)
        return self._gradient * (last - first + 1) - probe.units[at].backward_net - plain.kept_bytes

    def _showing(self, shared: FoundBefore, blocks: int) -> Iterator[tuple[int, int]]:
        """Checkpoints of one block each, so that a piece after so many blocks finds just this."""
        for block in range(blocks):
            if shared.opens if block == 0 else (self._kinds[block], True) in shared.kinds:
                yield block, block

    def _ending_with(self, shared: FoundBefore) -> Placement:
        """A placement that ends with it."""
        alone = {STORED: 1, SINGLE: 1, LONG: 2}.get(shared.returned, 0)
        before = max(self._shown - alone, 0)
        placement = tuple(self._showing(shared, before))
        return (*placement, (before, self._shown - 1)) if shared.returned in (SINGLE, LONG) else placement

    def _ends(self, last: int) -> bool:
        """Whether a piece with this last block finds another gradient that waits than the pieces before it do."""
        return self._waits and last == self.blocks - 1

    def _plain_stored(self, block: int) -> Piece:
        """A stored block behind others, which hold all that it shares."""
        return self._ending(1, False) if self._ends(block) else self._inner

    def _plain_segment(self, first: int, last: int) -> Piece:
        """These blocks as one checkpoint behind others, which hold all that they share."""
        length = last - first + 1
        return self._ending(length, True) if self._ends(last) else self._segment(length, False)

    def _ending(self, length: int, checkpoint: bool, *, opens: bool = False) -> Piece:
        """The piece that ends the model; with `opens` it is all of it."""
        found = self._endings.get((length, checkpoint))
        if found is None:
            runs = [1] if opens else range(self._units, self._units + len(set(self._kinds)))
            probes = [self._probe(_run(units, length, checkpoint)) for units in runs]
            # the last unit may be the first of its kind, but not in all of these
            units, probe = max(zip(runs, probes, strict=True), key=lambda one: one[1].units[-1].backward_net)
            piece = self._piece(probe.units[-1], length, probe.recomputed_flops // units)
            found = self._endings[length, checkpoint] = piece
        return found

    def _opening(self, last: int) -> Piece:
        """A checkpoint that begins with the first block; of all blocks it may be no part of a longer model."""
        if self._ends(last):
            return self._ending(last + 1, True, opens=True)
        if last + 1 < self.blocks or len(set(self._kinds)) == 1:
            return self._segment(last + 1, True)
        probe = self._probe(Segment(1, self.blocks, True))
        return self._piece(probe.units[0], self.blocks, probe.recomputed_flops)

    def _segment(self, length: int, opens: bool) -> Piece:
        found = self._segments.get((length, opens))
        if found is None:
            piece = self._between(length, opens) if self._slow else self._probed(length, opens)
            found = self._segments[length, opens] = piece
        return found

    def _between(self, length: int, opens: bool) -> Piece:
        """The same where replays are slow, and whoever asks replays what comes of it: on a line through two lengths."""
        low, high = ON_A_LINE
        if length <= low or self.blocks < high:
            return self._probed(length, opens)
        ends = zip(self._probed(low, opens), self._probed(high, opens), strict=True)
        return Piece(*(a + -(-(b - a) * (length - low) // (high - low)) for a, b in ends))

    def _probed(self, length: int, opens: bool) -> Piece:
        probe = self._probe(Segment(self._units, length, True))
        unit = probe.units[0] if opens else _plain(probe.units)
        return self._piece(unit, length, probe.recomputed_flops // self._units)

    def _piece(self, unit: UnitBytes, length: int, flops: int) -> Piece:
        kept = self._gradient * length - unit.backward_net
        return Piece(unit.forward_net, unit.forward_top, kept, unit.backward_top, flops)

    def _probe(self, *segments: Segment) -> Probe:
        found = self._probes.get(segments)
        if found is None:
            record = self._replay(segments)
            units, outside = take_apart(record, self._batch)
            numbers = [record.numbers[unit][0] for unit in units_of(record)]
            # Wav2Vec2's convolutions are computed again too where each block is a checkpoint: they are in no unit
            again = record.flops["recompute"] - record.recomputed.get(OUTSIDE, 0)
            found = self._probes[segments] = Probe(units, outside, again, numbers)
        return found


def _run(units: int, length: int, checkpoint: bool) -> Segment:
    """So many checkpoints of so many blocks, or so many stored blocks."""
    return Segment(units, length, True) if checkpoint else Segment(1, units, False)


def _plain(units: list[UnitBytes]) -> UnitBytes:
    """A later unit that is the first to hold nothing: of those between the first and the last it frees least."""
    return max(units[1:-1], key=lambda unit: unit.backward_net)
