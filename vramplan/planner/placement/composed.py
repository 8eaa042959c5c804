"""The sizes that the placement of checkpoints needs, of models whose blocks are of several kinds or in several stacks.

A segment is put together from its blocks: what each adds to the forward of the segment, to its recomputation and to its
backward depends on what the block is made of and on whether it is the first, the last or an inner one of the segment.
A few replays show all of that. What happens between two stacks goes with the piece that ends the first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from vramplan.planner.placement.labels import NOTHING, FoundInStack, Holdings, Label, Subject
from vramplan.planner.placement.optimal import Piece, Placement, Shared, Surroundings
from vramplan.planner.placement.together import SegmentSum, begun, longer
from vramplan.replay.block_profiles import NO_CHANGE, BlockPart, Profiles, StackGap, UnitProfile, profiles
from vramplan.replay.record import Record
from vramplan.replay.tensors import ALLOCATOR_BLOCK_BYTES

STORED, SINGLE, OPEN, INNER, CLOSE = "stored", "single", "open", "inner", "close"  # places of a block in its piece
Begins = Holdings | None
"""For the first segment of a stack: the tensors that it keeps alive. None for later ones, which are measured apart."""
NO_GAP = StackGap(NO_CHANGE, NO_CHANGE, 0)


class ComposedSizes:
    """`optimal.Sizes` of any model, at one micro-batch."""

    def __init__(self, model: Subject, short: Subject, stored: Record, batch: int, *, waits: bool = False) -> None:
        """`short` is a model of the same blocks, but fewer; `stored` is the record of `model` without checkpoints.

        `waits`: a gradient is there until that of the block before it is.
        """
        self._model, self._short, self._batch = model, short, batch
        self.blocks = len(model.labels)
        self._several = len(model.stacks) > 1
        self._ends = [model.bounds(stack)[1] for stack in range(len(model.stacks))]
        self._taken: dict[tuple[bool, Placement], Profiles] = {}
        self._parts: dict[tuple[Label, str, Begins], BlockPart] = {}
        self._gradients: dict[Label, int] = {}
        self._added: dict[tuple[FoundInStack, Holdings, bool], int] = {}
        self._gaps: dict[FoundInStack, StackGap] = {}
        self._frames: dict[Shared, Surroundings] = {}
        self._before: dict[int, list[SegmentSum]] = {}  # by the first block of the segment
        self._pieces: dict[tuple[int, int, bool, FoundInStack | None], Piece] = {}
        self._idle: set[int] = set()
        self._next: dict[tuple[FoundInStack, int, int, bool], FoundInStack] = {}
        self._holding: dict[tuple[int, int, bool], Holdings] = {}  # of pieces of the model
        self._least_gaps: dict[int, StackGap] = {}

        everything = singles(0, self.blocks - 1)
        whole = model.replay(everything) if self._several else stored
        outside = self._profiles(model, everything if self._several else ()).outside
        peaks, static = whole.peaks(batch), whole.static_bytes(batch)
        end = static + whole.net_bytes(batch, ("forward", "backward"))
        self.start_bytes = static + outside.before_net
        self.floor_bytes = max(static + outside.before_top, end - outside.after_net + outside.after_top, peaks["step"])
        self.stored_bytes: int | None = stored.peak_bytes(batch)
        self.most_returned_bytes = 0
        # The segment that ends a stack is relieved of what stands between it and the next, which may be more than its
        # own last block needs, and more than it keeps. What waits while the last block of all runs is the head's.
        self.longer_needs_more = not self._several and not waits
        self.grain_bytes = ALLOCATOR_BLOCK_BYTES
        self.nothing: Shared = NOTHING
        self._take(model, everything)  # shows which stacks are idle
        each = [self._gradient(label) for label in model.labels]
        for stack in range(len(model.stacks) - 1):
            each[self._ends[stack]] += (
                self._profiles(model, everything).gaps.get(self._ends[stack] + 1, NO_GAP).gradients
            )
        self._sums = [0, *accumulate(each)]
        self.held_bytes = end - outside.after_net - self._sums[-1]

    # ------------------------------------------------------------------------------------------------ protocol
    def reach(self, first: int) -> int:
        """The last block of the stack."""
        return self._ends[self._model.labels[first].stack]

    def gradient_bytes(self, first: int, last: int) -> int:
        """What the backward of these blocks leaves, and of what stands between stacks."""
        return self._sums[last + 1] - self._sums[first]

    def stored(self, block: int, shared: Shared | None) -> Piece:
        """A block that is no part of a checkpoint."""
        return self._piece(block, block, shared, checkpoint=False)

    def segment(self, first: int, last: int, shared: Shared | None) -> Piece:
        """These blocks as one checkpoint."""
        return self._piece(first, last, shared, checkpoint=True)

    def after(self, shared: Shared, first: int, last: int, *, checkpoint: bool) -> Shared:
        """What a piece after these blocks finds."""
        assert isinstance(shared, FoundInStack)
        key = (shared, first, last, checkpoint)
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = self._following(shared, first, last, checkpoint=checkpoint)
        return found

    def _following(self, shared: FoundInStack, first: int, last: int, *, checkpoint: bool) -> FoundInStack:
        held = self._after(self._model, shared, first, last, checkpoint=checkpoint)
        if last != self._ends[held.stack] or held.stack + 1 == len(self._model.stacks):
            return held
        carried = (*held.carried, checkpoint) if held.stack in self._idle else held.carried
        return FoundInStack(held.stack + 1, False, frozenset(), carried)

    def frame(self, shared: Shared) -> Surroundings:
        """What surrounds the blocks, read off a placement that ends with it."""
        found = self._frames.get(shared)
        if found is None:
            assert isinstance(shared, FoundInStack)
            outside = self._profiles(self._short, self._ending_with(self._short, shared)).outside
            found = self._frames[shared] = Surroundings(outside.between_top, outside.loss_net, outside.loss_top)
        return found

    def least_frame(self) -> Surroundings:
        """The surroundings of stored blocks and of checkpoints of one block each; the least of each figure."""
        found = [self.frame(held) for held in self._simple(len(self._model.stacks) - 1)]
        loss = max(found, key=lambda one: one.loss_net_bytes - one.loss_top_bytes)
        return Surroundings(min(one.head_top_bytes for one in found), loss.loss_net_bytes, loss.loss_top_bytes)

    # -------------------------------------------------------------------------------------------------- pieces
    def _piece(self, first: int, last: int, shared: Shared | None, *, checkpoint: bool) -> Piece:
        assert shared is None or isinstance(shared, FoundInStack)
        key = (first, last, checkpoint, shared)
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = self._made(first, last, shared, checkpoint=checkpoint)
        return found

    def _made(self, first: int, last: int, shared: FoundInStack | None, *, checkpoint: bool) -> Piece:
        labels = self._model.labels
        forward, backward, flops = self._segment(first, last) if checkpoint else self._stored(first)
        kept = sum(self._gradients[label] for label in labels[first : last + 1]) - backward[0]
        if shared is not None and not labels[first].first:
            new = self._holds(self._model, first, last, checkpoint=checkpoint) - shared.kinds
            if new:
                kept += self._measured(shared._replace(carried=()), new, checkpoint=checkpoint)
        piece = Piece(forward[0], forward[1], kept, backward[1], flops)
        if last != self.reach(first) or last == self.blocks - 1:
            return piece
        gap = self._least_gap(labels[first].stack)
        if shared is not None:
            gap = self._gap(self._after(self._model, shared, first, last, checkpoint=checkpoint))
        return Piece(
            piece.forward_bytes + gap.forward[0],
            max(piece.forward_top_bytes, piece.forward_bytes + gap.forward[1]),
            piece.kept_bytes + gap.gradients - gap.backward[0],
            max(gap.backward[1], gap.backward[0] + piece.backward_top_bytes),
            flops,
        )

    def _stored(self, block: int) -> tuple[tuple[int, int], tuple[int, int], int]:
        part = self._part(block, STORED)
        return part.forward, part.backward, 0

    def _segment(self, first: int, last: int) -> tuple[tuple[int, int], tuple[int, int], int]:
        """Change and top of a checkpoint in forward and in backward, and what it recomputes."""
        if first == last:
            part = self._part(first, SINGLE)
            return part.forward, part.backward, part.recomputed_flops
        whole, close = self._but_the_last(first, last), self._part(last, CLOSE, self._begins(first, last))
        forward_top = max(whole.forward_top, whole.forward_net + close.forward[1])
        level, top = close.before
        top, level = max(top, level + whole.again_top), level + whole.again_net
        top, level = max(top, level + close.again[1]), level + close.again[0]
        level += whole.leaving + close.leaving
        top, level = max(top, level + close.backward[1]), level + close.backward[0]
        top, level = max(top, level + whole.backward_top), level + whole.backward_net
        return (whole.forward_net + close.forward[0], forward_top), (level, top), whole.flops + close.recomputed_flops

    def _but_the_last(self, first: int, last: int) -> SegmentSum:
        """The blocks of a segment that are not its last one."""
        begins = self._begins(first, last)
        if begins is not None:
            whole = begun(self._part(first, OPEN, begins))
            for block in range(first + 1, last):
                whole = longer(whole, self._part(block, INNER, begins))
            return whole
        done = self._before.setdefault(first, [])
        while len(done) < last - first:
            block = first + len(done)
            done.append(longer(done[-1], self._part(block, INNER)) if done else begun(self._part(block, OPEN)))
        return done[last - first - 1]

    def _begins(self, first: int, last: int) -> Begins:
        if not self._model.labels[first].first:
            return None
        return self._holds(self._model, first, last, checkpoint=True)

    # ------------------------------------------------------------------------------------------------- sharing
    def _holds(self, model: Subject, first: int, last: int, *, checkpoint: bool) -> Holdings:
        """What a piece holds: a checkpoint all that a stored block of its kind does, and more.

        The first checkpoint of a stack among several is taken to hold what its first block does alone, whose results
        the later ones share.
        """
        key = (first, last, checkpoint)
        if model is self._model:
            found = self._holding.get(key)
            if found is not None:
                return found
        labels = model.labels[first : first + 1 if self._several and model.labels[first].first else last + 1]
        kinds = {label.shares for label in labels}
        holds = frozenset({(kind, how) for kind in kinds for how in {False, checkpoint}})
        if model is self._model:
            self._holding[key] = holds
        return holds

    def _after(self, model: Subject, held: FoundInStack, first: int, last: int, *, checkpoint: bool) -> FoundInStack:
        kinds = held.kinds | self._holds(model, first, last, checkpoint=checkpoint)
        return held._replace(opens=checkpoint if model.labels[first].first else held.opens, kinds=kinds)

    def _showing(self, model: Subject, held: FoundInStack, before: int) -> Placement:
        """Checkpoints of one block each in its stack, so that a piece at a block finds just this, if it can."""
        start, _ = model.bounds(held.stack)
        return tuple(
            (block, block)
            for block in range(start, before)
            if (held.opens if block == start else (model.labels[block].shares, True) in held.kinds)
        )

    def _around(self, model: Subject, stack: int, inside: Placement, carried: Sequence[bool] = ()) -> Placement:
        """A placement that is this one in a stack, with every block of the other stacks a checkpoint."""
        ranges: list[tuple[int, int]] = []
        left = list(carried)
        for other in range(len(model.stacks)):
            if other == stack:
                ranges += inside
            elif other not in self._idle or not left or left.pop(0):
                ranges += singles(*model.bounds(other))
        return tuple(ranges)

    def _ending_with(self, model: Subject, held: FoundInStack) -> Placement:
        inside = self._showing(model, held, model.bounds(held.stack)[1] + 1)
        return self._around(model, held.stack, inside, held.carried)

    def _measured(self, held: FoundInStack, new: Holdings, *, checkpoint: bool) -> int:
        """Bytes of what a piece is the first to hold, in a placement where it finds just this."""
        key = (held, new, checkpoint)
        found = self._added.get(key)
        if found is None:
            for model in (self._short, self._model):
                place = self._place(model, held, new, checkpoint=checkpoint)
                if place is not None:
                    break
            assert place is not None
            first = place[0]
            inside = (*self._showing(model, held, first), *([place] if checkpoint else []))
            taken = self._profiles(model, self._around(model, held.stack, inside))
            found = next(unit.released for unit in taken.units if unit.first_block == first)
            self._added[key] = found
        return found

    def _place(self, model: Subject, held: FoundInStack, new: Holdings, *, checkpoint: bool) -> tuple[int, int] | None:
        """The shortest piece that finds this, and is the first to hold just that."""
        start, end = model.bounds(held.stack)
        for length in range(1, end - start + 1 if checkpoint else 2):
            for first in range(start + 1, end + 2 - length):
                last = first + length - 1
                if self._holds(model, first, last, checkpoint=checkpoint) - held.kinds != new:
                    continue
                if self._found_at(model, held, first) == held:
                    return first, last
        return None

    def _found_at(self, model: Subject, held: FoundInStack, before: int) -> FoundInStack:
        """What a block finds after the checkpoints that are to show something."""
        start, _ = model.bounds(held.stack)
        shown = {first for first, _ in self._showing(model, held, before)}
        found = FoundInStack(held.stack, False, frozenset(), ())
        for block in range(start, before):
            found = self._after(model, found, block, block, checkpoint=block in shown)
        return found

    # --------------------------------------------------------------------------------------------- surroundings
    def _gap(self, held: FoundInStack) -> StackGap:
        """What follows a stack that ends with this."""
        found = self._gaps.get(held)
        if found is None:
            taken = self._profiles(self._short, self._ending_with(self._short, held))
            found = self._gaps[held] = taken.gaps.get(self._short.bounds(held.stack)[1] + 1, NO_GAP)
        return found

    def _least_gap(self, stack: int) -> StackGap:
        """The least of each figure, after stored blocks and after checkpoints."""
        if stack + 1 == len(self._model.stacks):
            return NO_GAP
        if stack in self._least_gaps:
            return self._least_gaps[stack]
        gaps = [self._gap(held) for held in self._simple(stack)]
        self._least_gaps[stack] = least = StackGap(
            (min(gap.forward[0] for gap in gaps), min(gap.forward[1] for gap in gaps)),
            (max(gap.backward[0] for gap in gaps), min(gap.backward[1] for gap in gaps)),
            gaps[0].gradients,
        )
        return least

    def _simple(self, stack: int) -> list[FoundInStack]:
        """What a stack ends with whose blocks are stored, or checkpoints, or checkpoints but for the first."""
        start, end = self._model.bounds(stack)
        found = []
        for first, rest in ((False, False), (True, True), (False, True)):
            held = FoundInStack(stack, False, frozenset(), ())
            for block in range(start, end + 1):
                held = self._after(self._model, held, block, block, checkpoint=first if block == start else rest)
            carrying = [one for one in self._idle if one < stack]
            found += [held._replace(carried=(how,) * len(carrying)) for how in ({False, True} if carrying else {True})]
        return found

    # ------------------------------------------------------------------------------------------------ measuring
    def _gradient(self, label: Label) -> int:
        if label not in self._gradients:
            self._take(self._short, self._around(self._short, label.stack, ()))
        return self._gradients[label]

    def _part(self, block: int, place: str, begins: Begins = None) -> BlockPart:
        """What a block adds at a place of a segment."""
        label = self._model.labels[block]
        if not self._several and place != OPEN:
            begins = None  # only its first block says what it holds
        key = (label, place, begins)
        found = self._parts.get(key)
        if found is None:
            for model in (self._short, self._model):
                placement = self._showing_at(model, label, place, begins)
                if placement is not None:
                    self._take(model, placement)
                    break
            found = self._parts[key]
        return found

    def _showing_at(self, model: Subject, label: Label, place: str, begins: Begins) -> Placement | None:
        """A placement with such a block at a place, and other blocks at that place too."""
        start, end = model.bounds(label.stack)
        if place == STORED:
            return self._around(model, label.stack, ())
        if place == SINGLE:
            return self._around(model, label.stack, singles(start, end))
        for block in range(start, end + 1):
            if model.labels[block] != label:
                continue
            first = block - {OPEN: 0, INNER: 1, CLOSE: 1}[place] if begins is None else start
            last = block + {OPEN: 1, INNER: 1, CLOSE: 0}[place]
            if place == OPEN:
                while last < end and begins not in (None, self._holds(model, first, last, checkpoint=True)):
                    last += 1
                last = min(end, last + 1)  # so that an inner block is seen too
                if begins not in (None, self._holds(model, first, last, checkpoint=True)):
                    last -= 1
            if first < start or last > end or (self._several and begins is None and model.labels[first].first):
                continue
            inside = list(singles(start, first - 1))
            while first <= end:
                inside.append((first, min(last, end)))
                first, last = last + 1, last + 1 + last - first
            return self._around(model, label.stack, tuple(inside))
        return None

    def _take(self, model: Subject, placement: Placement) -> None:
        """Remember what a placement shows of its blocks."""
        sizes = dict(placement)
        for unit in self._profiles(model, placement).units:
            last = sizes.get(unit.first_block)
            for copy in range(unit.copies):
                first = unit.first_block + copy * unit.distance
                if last is None:
                    self._gradients.setdefault(model.labels[first], unit.gradients)
                self._remember(model, unit, first, None if last is None else last - unit.first_block)
            if unit.idle:
                self._idle.add(model.labels[unit.first_block].stack)

    def _remember(self, model: Subject, unit: UnitProfile, first: int, length: int | None) -> None:
        """`length`: from the first to the last block of the checkpoint; None if it is a stored block."""
        label = model.labels[first]
        if length is None:
            self._parts.setdefault((label, STORED, None), unit.parts[0])
            return
        begins = self._holds(model, first, first + length, checkpoint=True) if label.first else None
        for part in unit.parts:
            for block in range(part.offset, part.offset + part.blocks):
                place = OPEN if block == 0 else CLOSE if block == length else INNER
                place = SINGLE if not length else place
                own = begins if place == OPEN or (self._several and length) else None
                self._parts.setdefault((model.labels[first + block], place, own), part)

    def _profiles(self, model: Subject, placement: Placement) -> Profiles:
        key = (model is self._short, placement)
        found = self._taken.get(key)
        if found is None:
            firsts = frozenset(model.bounds(stack)[0] for stack in range(len(model.stacks)))
            found = self._taken[key] = profiles(model.replay(placement), self._batch, firsts)
        return found


def singles(first: int, last: int) -> Placement:
    """These blocks, each a checkpoint."""
    return tuple((block, block) for block in range(first, last + 1))
