"""What there is when a block begins under stage 3 of ZeRO, and how the walk goes on from another block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero import COMMUNICATION
from vramplan.engines.deepspeed.zero3_blocks import ContiguousBlocks
from vramplan.engines.deepspeed.zero3_gathered import GATHERED, Handle
from vramplan.engines.deepspeed.zero3_gathering import Gathering
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.replay.ledger import NotAlike
from vramplan.replay.recorder import Tape, Tensor
from vramplan.replay.tensors import Parameter, Storage
from vramplan.tuples import NamedTuple

Coming = tuple[tuple[int, ...], tuple[int, ...], bool]  # of a collective: all, those that come, is it complete


class Stand(NamedTuple):
    """Where a walk is, by the numbers of parameters: all that decides what comes but for the bucket."""

    step: int
    queued: int  # uses that nothing was gathered for yet
    live: int
    whole: frozenset[int]  # but for those that always are
    coming: frozenset[Coming]
    leaving: tuple[int, ...]
    recomputed: frozenset[int]
    is_over: bool
    nothing_waits: bool  # no gradient is anywhere but in the bucket, and no module is about to run


class WalkNotes(NamedTuple):
    """What tells where a walk is; `stand` is made of it where somebody asks, which is seldom."""

    step: int
    queued: int
    live: int
    whole: dict[int, Any]
    coming: list[tuple[int, Handle, bool]]
    leaving: tuple[int, ...]
    recomputed: tuple[int, ...]
    is_over: bool
    nothing_waits: bool

    @property
    def stand(self) -> Stand:
        """Where it is."""
        still: dict[int, list[int]] = {}
        handles: dict[int, tuple[Handle, bool]] = {}
        for one, handle, is_complete in self.coming:
            still.setdefault(id(handle), []).append(one)
            handles[id(handle)] = handle, is_complete
        coming = [
            (handle.members, tuple(sorted(still[name])), is_complete) for name, (handle, is_complete) in handles.items()
        ]
        return Stand(
            self.step,
            self.queued,
            self.live,
            frozenset(self.whole),
            frozenset(coming),
            self.leaving,
            frozenset(self.recomputed),
            *self[7:],
        )

    @property
    def buffers(self) -> dict[tuple[int, ...], tuple[Any, ...]]:
        """Those of each collective, by what it gathers."""
        return {handle.members: handle.buffers for _, handle, _ in self.coming}


class Standing(Gathering):
    """The walk of one iteration that can be asked where it stands, and go on from another block."""

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order) -> None:
        super().__init__(tape, policy, order)
        self.bucket: list[int] = []  # numbers of the parameters whose gradients wait to be reduced
        self.filled = 0
        self.large: Parameter | None = None
        self.unmoved: dict[int, Parameter] = {}  # by their numbers, whose gradients are in no buffer of their bucket
        self.of_leaf: dict[int, Parameter] = {}  # whose gradients wait for those of the others
        self.waiting: dict[int, Parameter] = {}  # biases that come after their weights, by these
        self.reductions = 0  # of buckets, so far
        self.is_viewed = False  # something looks at what was gathered, and keeps it

    def held_whole(self, weight: Parameter) -> Tensor | None:
        """As of a walk block by block."""
        found = super().held_whole(weight)
        self.is_viewed = self.is_viewed or found is not None
        return found

    # -------------------------------------------------------------------------------------------- as seen from it
    def standing(self, blocks: ContiguousBlocks, queued: Sequence[int], block: int, *, turned: bool) -> Hashable:
        """All that decides what happens from here on but for the bucket, by the distance from a block that begins.

        `queued`: how many parameters are used before each step. `turned`: backward has begun.
        """
        seen = _Seen(blocks, block)
        coming = [(seen(handle.members), seen(self._still(handle))) for handle in self._handles()]
        taken = queued[-1] - len(self.queue)
        return (
            taken - queued[self.step],
            self.room,
            frozenset(seen(one for one in self.whole if not (self.stays[one] or self.is_left(one)))),
            frozenset(coming),
            self.besides(blocks, block, turned=turned),
        )

    def besides(self, blocks: ContiguousBlocks, block: int, *, turned: bool) -> Hashable:
        """The same without what is gathered, and how far ahead."""
        seen = _Seen(blocks, block)
        return (
            self.step - blocks.step(block, turned=turned),
            seen(self.leaving),
            frozenset(seen(+self.held)),
            frozenset(seen(self.recomputed)),
            (self.is_over, self.owner is None, self.entry is None),
            self.large is None,
            frozenset(seen(self.of_leaf)),
            frozenset(seen(self.waiting)),
        )

    def waits(self, blocks: ContiguousBlocks, block: int) -> Hashable:
        """The gradients in the bucket, by the distance from a block."""
        start = blocks.start(block)
        return self.filled, tuple([(blocks.of(one) is not None, one - start) for one in self.bucket])

    def move(self, blocks: ContiguousBlocks, by: int) -> None:
        """What there is of blocks becomes that of others, whose parameters have numbers that are higher by so many."""

        def moved(one: int) -> int:
            return one if blocks.of(one) is None else one + by

        whole = self.whole.items()
        self.whole = {one if self.stays[one] or self.is_left(one) else moved(one): tensor for one, tensor in whole}
        for handle in self._handles():
            handle.members = tuple(map(moved, handle.members))
            handle.arrived = {moved(one): tensor for one, tensor in handle.arrived.items()}
        self.coming = {moved(one): handle for one, handle in self.coming.items()}
        self.leaving = tuple(map(moved, self.leaving))
        self.held = Counter({moved(one): count for one, count in self.held.items()})
        self.recomputed = set(map(moved, self.recomputed))
        self.of_leaf = {moved(one): parameter for one, parameter in self.of_leaf.items()}
        self.waiting = {moved(one): parameter for one, parameter in self.waiting.items()}

    def is_left(self, one: int) -> bool:
        """Whether a whole parameter is not used any more, and nothing lets it go before the end."""
        steps = self.comes.get(one)
        used = steps is not None and steps[-1] >= self.step
        return not (used or one in self.leaving or one in self.recomputed or self.held[one])

    def ahead(self, blocks: ContiguousBlocks) -> set[int]:
        """The blocks of which something is there that goes with them.

        What lives longer than the blocks goes once for each that its own stands for: it must not be handed on so far.
        """
        there = [one for one in (*self.whole, *self.coming) if not (self.stays[one] or self.is_left(one))]
        return {block for block in map(blocks.of, there) if block is not None}

    @property
    def room(self) -> int:
        """Elements that may be gathered ahead."""
        zero = self.policy.zero
        return max(0, min(zero.max_live_parameters - self.live, zero.prefetch_bucket_size))

    def skip(self, steps: int, queued: Sequence[int]) -> None:
        """Go on so many steps later, with as much ahead as there is now."""
        self._take(queued[self.step + steps] - queued[self.step])
        self.step += steps

    def _take(self, uses: int) -> None:
        for _ in range(uses):
            one, step = self.queue.popleft()
            self.fetched_for[one] = max(self.fetched_for[one], step)

    # ------------------------------------------------------------------------------------------------- as it is
    def stand(self) -> Stand:
        """Where the walk is."""
        return self.noted().stand

    def noted(self) -> WalkNotes:
        """What tells where the walk is, as long as it goes on."""
        return WalkNotes(
            self.step,
            len(self.queue),
            self.live,
            {one: tensor for one, tensor in self.whole.items() if not self.stays[one]},
            [(one, handle, handle.is_complete) for one, handle in self.coming.items()],
            self.leaving,
            tuple(self.recomputed),
            self.is_over,
            self.large is None and self.owner is None and self.entry is None and not (self.of_leaf or self.waiting),
        )

    def go_on(self, walked: WalkNotes) -> None:
        """Go on from where another walk of the same iteration was, with what this one has made.

        What is as large as what is there then becomes that. Copies of a unit that are not played have made or freed the
        rest, of which each has its twin among what is played. Raises NotAlike where something has none.
        """
        if self.is_viewed:
            raise NotAlike
        there, buffers = walked.stand, walked.buffers
        whole = {one: tensor for one, tensor in self.whole.items() if self.stays[one]}
        had = _Had(self.tape)
        for one, tensor in self.whole.items():
            if not self.stays[one]:
                had.add(GATHERED, tensor)
        for handle in self._handles():
            for buffer in handle.buffers:
                had.add(COMMUNICATION, buffer)
        for one in sorted(there.whole):
            whole[one] = had.one_of(GATHERED, walked.whole[one])
        coming: dict[int, Handle] = {}
        for members, still, is_complete in sorted(there.coming):
            handle = Handle(members, [had.one_of(COMMUNICATION, size) for size in buffers[members]])
            handle.is_complete = is_complete
            coming.update(dict.fromkeys(still, handle))
        had.free_others()
        self.whole, self.coming = whole, coming
        self._take(len(self.queue) - there.queued)
        self.step, self.live, self.leaving = there.step, there.live, there.leaving
        self.recomputed = set(there.recomputed)

    def _handles(self) -> list[Handle]:
        return [*{id(handle): handle for handle in self.coming.values()}.values()]

    def _still(self, handle: Handle) -> list[int]:
        return [one for one in handle.members if self.coming.get(one) is handle]


class _Seen:
    """Numbers of parameters as a block sees them: those of blocks by the distance from its own first one."""

    def __init__(self, blocks: ContiguousBlocks, block: int) -> None:
        self.blocks, self.start = blocks, blocks.start(block)

    def __call__(self, numbers: Iterable[int]) -> tuple[tuple[bool, int], ...]:
        of, start = self.blocks.of, self.start
        return tuple([(True, one - start) if of(one) is not None else (False, one) for one in numbers])


class _Had:
    """What a walk has made, by its component and its elements."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.left: dict[tuple[str, int], list[Tensor]] = {}
        self.any: dict[tuple[str, int], Tensor] = {}

    def add(self, category: str, tensor: Tensor | None) -> None:
        if tensor is None or type(tensor.storage) is not Storage:
            raise NotAlike
        key = category, tensor.shape[0]
        self.left.setdefault(key, []).append(tensor)
        self.any[key] = tensor
        self.tape.unseen.handed_on.add(tensor.storage.index)

    def one_of(self, category: str, elements: int) -> Tensor:
        key = category, elements
        left = self.left.get(key)
        if left:
            return left.pop(0)
        like = self.any.get(key)
        if like is None:
            raise NotAlike
        assert like.storage is not None
        other = like.alias(like.shape, like.strides, like.node)
        other.storage = self.tape.twin(like.storage)
        return other

    def free_others(self) -> None:
        for tensors in self.left.values():
            for tensor in tensors:
                assert tensor.storage is not None
                self.tape.freed_unseen(tensor.storage)
