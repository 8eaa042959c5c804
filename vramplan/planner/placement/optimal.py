"""Checkpoints placed by real sizes: the least recomputation whose peak is within a limit.

A placement is a row of stored blocks and of checkpointed segments. Every such piece adds what it keeps to the level of
all later ones, has a highest level of its own in forward and in backward, and costs the recomputation of its segment.
So the peak of a placement is a maximum over its pieces, and the search walks the blocks once, keeping for each block
the states (bytes kept, operations recomputed) that no other state beats: everything that comes later only grows with
what is kept. Unlike k + L/k of the textbooks it needs no equal blocks, and it is exact.

Pieces are not quite independent: tensors that several hold live as long as the first of them, and a loop may keep what
the last block returned. What a piece must know of those before it is the `Shared` of a walk, of which there are few.

The idea of such a walk: Beaumont et al., arXiv 1911.13214 (rotor), there for chains whose order of work is free too;
here a segment is one checkpoint of torch.utils.checkpoint, computed forward twice and no deeper.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any, Protocol

from vramplan.tuples import NamedTuple

Placement = tuple[tuple[int, int], ...]  # first and last block of each checkpoint, 0-based and inclusive


class Piece(NamedTuple):
    """A stored block, or a segment that is one checkpoint. Bytes above the level at its start."""

    forward_bytes: int  # what it leaves when forward goes on
    forward_top_bytes: int
    kept_bytes: int  # what it holds until its own backward
    backward_top_bytes: int
    recomputed_flops: int


Shared = Hashable
"""What a piece finds of what those before it hold."""


class Surroundings(NamedTuple):
    """What surrounds the pieces, for placements that end with one `Shared`."""

    head_top_bytes: int  # highest level from the last block to the end of forward, above the level before it
    loss_net_bytes: int  # what the backward of loss and head adds
    loss_top_bytes: int


class PlacementSizes(Protocol):
    """The sizes of one job at one micro-batch."""

    @property
    def blocks(self) -> int:
        """How many blocks there are."""

    @property
    def grain_bytes(self) -> int:
        """All peaks are multiples of it, or those that are nearer to each other are not told apart."""

    @property
    def start_bytes(self) -> int:
        """Level before the first block's forward."""

    @property
    def held_bytes(self) -> int:
        """Level in backward beside what pieces keep and the gradients of later blocks."""

    @property
    def floor_bytes(self) -> int:
        """Highest level that no placement changes: before the first block, and after backward."""

    @property
    def stored_bytes(self) -> int | None:
        """The peak with every block stored, where that is not what its pieces add up to; else None."""

    @property
    def nothing(self) -> Shared:
        """What the first piece finds."""

    @property
    def most_returned_bytes(self) -> int:
        """What the loop may keep of a piece's results until the next has returned, at most."""

    @property
    def longer_needs_more(self) -> bool:
        """Whether a segment that ends later needs more in backward, and none before it leaves room for that."""

    def frame(self, shared: Shared) -> Surroundings:
        """The surroundings of the placements that end with it."""

    def least_frame(self) -> Surroundings:
        """Surroundings of which no figure is above that of any placement."""

    def reach(self, first: int) -> int:
        """The last block that a checkpoint may have which begins with this one: the last of its stack."""

    def gradient_bytes(self, first: int, last: int) -> int:
        """What the backward of these blocks leaves: their gradients, where they are not resident anyway."""

    def stored(self, block: int, shared: Shared | None) -> Piece:
        """A block that is no part of a checkpoint; with None, if all that it shares is held already."""

    def segment(self, first: int, last: int, shared: Shared | None) -> Piece:
        """These blocks as one checkpoint; with None, if all that they share is held already."""

    def after(self, shared: Shared, first: int, last: int, *, checkpoint: bool) -> Shared:
        """What a piece after these blocks finds."""


def peak_bytes(sizes: PlacementSizes, placement: Placement) -> int:
    """The peak of a placement; equals the replay's."""
    if not placement and sizes.stored_bytes is not None:
        return sizes.stored_bytes
    pieces, shared = _pieces(sizes, placement)
    frame = sizes.frame(shared)
    level = sizes.start_bytes
    top = sizes.floor_bytes
    for piece, _, _ in pieces:
        top = max(top, level + piece.forward_top_bytes)
        level += piece.forward_bytes
    top = max(top, level + frame.head_top_bytes)
    level = sizes.held_bytes + sum(piece.kept_bytes for piece, _, _ in pieces)
    top = max(top, level - frame.loss_net_bytes + frame.loss_top_bytes)
    for piece, first, last in reversed(pieces):
        top = max(top, level + piece.backward_top_bytes)
        level += sizes.gradient_bytes(first, last) - piece.kept_bytes
    return top


def recomputed_flops(sizes: PlacementSizes, placement: Placement) -> int:
    """Operations of forward that a placement does twice."""
    return sum(piece.recomputed_flops for piece, _, _ in _pieces(sizes, placement)[0])


def last_kept_bytes(sizes: PlacementSizes, *, checkpoint: bool) -> int:
    """What the last inner block keeps for backward where all are stored, or each a checkpoint."""
    placement = tuple((block, block) for block in range(sizes.blocks)) if checkpoint else ()
    pieces = _pieces(sizes, placement)[0]
    return pieces[-2 if len(pieces) > 2 else -1][0].kept_bytes


def _pieces(sizes: PlacementSizes, placement: Placement) -> tuple[list[tuple[Piece, int, int]], Shared]:
    """The pieces with their first and last blocks, and what a piece after them would find."""
    pieces = []
    at, shared = 0, sizes.nothing
    for first, last in (*placement, (sizes.blocks, sizes.blocks)):
        for block in range(at, first):
            pieces.append((sizes.stored(block, shared), block, block))
            shared = sizes.after(shared, block, block, checkpoint=False)
        if first < sizes.blocks:
            pieces.append((sizes.segment(first, last, shared), first, last))
            shared = sizes.after(shared, first, last, checkpoint=True)
        at = last + 1
    return pieces, shared


def least_recomputation(sizes: PlacementSizes, limit_bytes: int) -> Placement | None:
    """The placement that recomputes least among those within the limit, of these the one with the smallest peak.

    No checkpoints where they are not needed, even if one would need less that recomputes nothing, as that of a block
    whose result nobody asks for does. None if no placement is within the limit.
    """
    if peak_bytes(sizes, ()) <= limit_bytes:
        return ()
    best = _search(sizes, limit_bytes, _good(sizes, limit_bytes))
    if best is None:
        return None
    return _squeeze(sizes, best, recomputed_flops(sizes, best))


def smallest_peak(sizes: PlacementSizes) -> Placement:
    """The placement with the smallest peak, of these the one that recomputes least."""
    everything: Placement = tuple((block, block) for block in range(sizes.blocks))
    best = _squeeze(sizes, everything, None)
    limit = peak_bytes(sizes, best)
    if peak_bytes(sizes, ()) <= limit:
        return ()
    most = min(recomputed_flops(sizes, best), _good(sizes, limit) or recomputed_flops(sizes, best))
    return _search(sizes, limit, most) or ()


def is_possible(sizes: PlacementSizes, limit_bytes: int) -> bool:
    """Whether some placement is within the limit."""
    everything: Placement = tuple((block, block) for block in range(sizes.blocks))
    if any(peak_bytes(sizes, placement) <= limit_bytes for placement in ((), everything)):
        return True
    return _search(sizes, limit_bytes, None, any_will_do=True) is not None


def _squeeze(sizes: PlacementSizes, best: Placement, most_flops: int | None) -> Placement:
    """Lower the peak of a placement as far as it goes; `most_flops` bounds the recomputation.

    A search with a bound is slow where it finds nothing, and most often a placement with the least recomputation has
    the smallest peak of these too. So the limit goes down from its peak in steps that double, and the first that finds
    nothing leaves little to halve. Without a bound a search is quick, and halving takes fewer of them.
    """
    grain = sizes.grain_bytes
    low, high = sizes.floor_bytes, peak_bytes(sizes, best)  # at `high` one is known
    step = grain if most_flops is not None else 0
    while low < high:
        middle = low + (high - low) // 2 // grain * grain
        if step:
            middle = max(middle, -(-(high - step - low) // grain) * grain + low)
        found = _search(sizes, middle, most_flops, any_will_do=most_flops is None)
        if found is None:
            low, step = middle + grain, 0
        else:
            best, high, step = found, peak_bytes(sizes, found), 2 * step
    return best


def _good(sizes: PlacementSizes, limit_bytes: int) -> int | None:
    """Operations that a simple placement within the limit recomputes: equal segments first, then stored blocks.

    The search need not look at anything that costs more.
    """
    blocks, best, least = sizes.blocks, None, inf
    for length in range(1, blocks + 1):
        begins = sizes.segment(0, min(length - 1, sizes.reach(0)), sizes.nothing)
        if sizes.held_bytes + begins.backward_top_bytes > limit_bytes:
            break
        equal: list[tuple[int, int]] = []
        while not equal or equal[-1][1] < blocks - 1:
            at = equal[-1][1] + 1 if equal else 0
            equal.append((at, min(at + length - 1, sizes.reach(at))))
        of_all = peak_bytes(sizes, tuple(equal))
        if (
            of_all > limit_bytes and of_all > least
        ):  # longer ones most often need more; what is left out makes the bound looser, not wrong
            break
        least = min(least, of_all)
        low, high = 1, len(equal)
        while low <= high:  # fewer segments recompute less and keep more
            middle = (low + high) // 2
            placement = tuple(equal[:middle])
            if peak_bytes(sizes, placement) <= limit_bytes:
                flops = recomputed_flops(sizes, placement)
                best = flops if best is None else min(best, flops)
                high = middle - 1
            else:
                low = middle + 1
    return best


# All blocks before some block are placed: operations recomputed, bytes kept for backward, level in forward, the state
# before the last piece, that piece's first block, whether it is a checkpoint. A plain tuple: there are many.
_State = tuple[int, int, int, Any, int, bool]


def _search(
    sizes: PlacementSizes, limit: int, most_flops: int | None, *, any_will_do: bool = False
) -> Placement | None:
    """The placement with the least recomputation within the limit; with `any_will_do` any that is within it."""
    if sizes.floor_bytes > limit:
        return None
    blocks, room_for_all = sizes.blocks, limit - sizes.held_bytes
    gradients = sizes.gradient_bytes(0, blocks - 1)
    bound = None if most_flops is None else _Bound(sizes, limit, most_flops)
    states: list[dict[Shared, list[_State]]] = [{} for _ in range(blocks + 1)]  # by blocks placed
    states[0][sizes.nothing] = [(0, 0, sizes.start_bytes, None, 0, False)]
    for at in range(blocks):
        for shared, here in states[at].items():
            if bound is not None:
                here = bound.worth(here, at)
            here = _unbeaten(here, any_will_do)
            if not here:
                continue
            for last in range(at - 1, sizes.reach(at) + 1):  # at - 1: the block is stored
                is_stored = last < at
                last = max(last, at)
                piece = sizes.stored(at, shared) if is_stored else sizes.segment(at, last, shared)
                room = room_for_all - (gradients - sizes.gradient_bytes(0, last))
                into = states[last + 1].setdefault(sizes.after(shared, at, last, checkpoint=not is_stored), [])
                some = _extend(here, piece, at, not is_stored, into, limit, room, most_flops)
                if not some and not is_stored and sizes.longer_needs_more:
                    break
        states[at] = {}
    best: _State | None = None
    for shared, ends in states[blocks].items():
        if not ends:
            continue
        frame = sizes.frame(shared)
        for state in ends:
            if state[2] + frame.head_top_bytes > limit:
                continue
            if state[1] - frame.loss_net_bytes + frame.loss_top_bytes > room_for_all:
                continue
            if best is None or state[:2] < best[:2]:
                best = state
    return None if best is None else _spelled(best, blocks)


def _extend(
    here: list[_State],
    piece: Piece,
    first: int,
    checkpoint: bool,
    into: list[_State],
    limit: int,
    room: int,
    most_flops: int | None,
) -> bool:
    """Append a piece to every state that has room for it; whether one had."""
    forward, forward_top, kept, backward_top, flops = piece
    room -= kept + backward_top
    forward_room = limit - forward_top
    some = False
    for state in here:
        if state[1] > room or (most_flops is not None and state[0] + flops > most_flops):
            continue
        some = True
        if state[2] <= forward_room:
            into.append((state[0] + flops, state[1] + kept, state[2] + forward, state, first, checkpoint))
    return some


def _unbeaten(states: list[_State], any_will_do: bool) -> list[_State]:
    """The states that no other beats in recomputation and in both kinds of bytes, or with `any_will_do` in bytes."""
    if len(states) < 2:
        return states
    kept: list[_State] = []
    if any_will_do:
        states.sort(key=_by_bytes)
        least = states[0][2] + 1
        for state in states:
            if state[2] < least:
                least = state[2]
                kept.append(state)
        return kept
    states.sort(key=_by_flops)
    lowest: list[tuple[int, int]] = []  # pairs of bytes that no state so far is below
    for state in states:
        backward, forward = state[1], state[2]
        for a, b in lowest:
            if a <= backward and b <= forward:
                break
        else:
            lowest = [(a, b) for a, b in lowest if a < backward or b < forward]
            lowest.append((backward, forward))
            kept.append(state)
    return kept


def _by_flops(state: _State) -> tuple[int, int, int]:
    return state[0], state[1], state[2]


def _by_bytes(state: _State) -> tuple[int, int]:
    return state[1], state[2]


class _Bound:
    """What a state must still recompute at least, so that the end is within the limit.

    Both kinds of bytes have a limit at the end of forward. To come below it, segments have to save what storing all
    blocks ahead would leave too much, at the rate of the best segment.
    """

    def __init__(self, sizes: PlacementSizes, limit: int, most_flops: int) -> None:
        blocks = sizes.blocks
        frame = sizes.least_frame()
        self.most_flops = most_flops
        self.slack = most_flops * 1e-12 + 1  # of the division
        stored = [sizes.stored(block, None) for block in range(blocks)]
        most_kept = limit - sizes.held_bytes + frame.loss_net_bytes - frame.loss_top_bytes
        most_forward = limit - frame.head_top_bytes + sizes.most_returned_bytes
        kept, forward = (_from_each([piece[field] for piece in stored]) for field in (2, 0))
        self.kept_ahead = [ahead - most_kept for ahead in kept]
        self.forward_ahead = [ahead - most_forward for ahead in forward]
        self.kept_rate = self.forward_rate = inf
        room = limit - sizes.held_bytes
        for first in range(blocks):
            for last in range(first, sizes.reach(first) + 1):
                piece = sizes.segment(first, last, None)
                if sizes.longer_needs_more and piece.kept_bytes + piece.backward_top_bytes > room:
                    break
                saved = kept[first] - kept[last + 1] - piece.kept_bytes
                if saved > 0:
                    self.kept_rate = min(self.kept_rate, piece.recomputed_flops / saved)
                saved = forward[first] - forward[last + 1] - piece.forward_bytes
                if saved > 0:
                    self.forward_rate = min(self.forward_rate, piece.recomputed_flops / saved)

    def worth(self, states: list[_State], at: int) -> list[_State]:
        """The states that can still end within the limit and within the operations."""
        most, kept_ahead, forward_ahead = self.most_flops + self.slack, self.kept_ahead[at], self.forward_ahead[at]
        kept_rate, forward_rate = self.kept_rate, self.forward_rate
        return [
            state
            for state in states
            if (state[1] + kept_ahead <= 0 or state[0] + (state[1] + kept_ahead) * kept_rate <= most)
            and (state[2] + forward_ahead <= 0 or state[0] + (state[2] + forward_ahead) * forward_rate <= most)
        ]


def _from_each(values: list[int]) -> list[int]:
    """The sum from each place to the end."""
    sums = [0]
    for value in reversed(values):
        sums.append(sums[-1] + value)
    return sums[::-1]


def _spelled(state: _State, blocks: int) -> Placement:
    ranges = []
    end = blocks
    _, _, _, before, first, checkpoint = state
    while before is not None:
        if checkpoint:
            ranges.append((first, end - 1))
        end = first
        _, _, _, before, first, checkpoint = before
    return tuple(reversed(ranges))
