"""What there is when a block begins under stage 3 of ZeRO, as seen from it, and the same of another block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.zero3_blocks import ContiguousBlocks
from vramplan.engines.deepspeed.zero3_gathering import Gathering
from vramplan.engines.deepspeed.zero3_policy import Zero3Policy
from vramplan.replay.recorder import Tape
from vramplan.replay.tensors import Parameter


class Standing(Gathering):
    """The walk of one iteration that can be asked where it stands, and go on from another block."""

    def __init__(self, tape: Tape, policy: Zero3Policy, order: Order) -> None:
        super().__init__(tape, policy, order)
        self.bucket: list[int] = []  # numbers of the parameters whose gradients wait to be reduced
        self.filled = 0
        self.large: Parameter | None = None
        self.unmoved: list[Parameter] = []  # whose gradients are in no buffer of their bucket
        self.of_leaf: dict[int, Parameter] = {}  # whose gradients wait for those of the others
        self.waiting: dict[int, Parameter] = {}  # biases that come after their weights, by these
        self.reductions = 0  # of buckets, so far

    def standing(self, blocks: ContiguousBlocks, queued: Sequence[int], block: int, *, turned: bool) -> Hashable:
        """All that decides what happens from here on but for the bucket, by the distance from a block that begins.

        `queued`: how many parameters are used before each step. `turned`: backward has begun.
        """
        start = blocks.start(block)

        def seen(numbers: Iterable[int]) -> tuple[tuple[bool, int], ...]:
            return tuple([(True, one - start) if blocks.of(one) is not None else (False, one) for one in numbers])

        handles = {id(handle): handle for handle in self.coming.values()}
        coming = [
            (seen(handle.members), seen([one for one in handle.members if self.coming.get(one) is handle]))
            for handle in handles.values()
        ]
        taken = queued[-1] - len(self.queue)
        return (
            self.step - blocks.step(block, turned=turned),
            taken - queued[self.step],
            self.room,
            frozenset(seen(one for one in self.whole if not (self.stays[one] or self.is_left(one)))),
            frozenset(coming),
            seen(self.leaving),
            frozenset(seen(+self.held)),
            frozenset(seen(self.recomputed)),
            (self.is_over, self.owner is None, self.entry is None),
            self.large is None,
            frozenset(seen(self.of_leaf)),
            frozenset(seen(self.waiting)),
        )

    def move(self, blocks: ContiguousBlocks, by: int) -> None:
        """What there is of blocks becomes that of others, whose parameters have numbers that are higher by so many."""

        def moved(one: int) -> int:
            return one if blocks.of(one) is None else one + by

        whole = self.whole.items()
        self.whole = {one if self.stays[one] or self.is_left(one) else moved(one): tensor for one, tensor in whole}
        for handle in {id(handle): handle for handle in self.coming.values()}.values():
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

    def waits(self, blocks: ContiguousBlocks, block: int) -> Hashable:
        """The gradients in the bucket, by the distance from a block."""
        start = blocks.start(block)
        return self.filled, tuple([(blocks.of(one) is not None, one - start) for one in self.bucket])

    def skip(self, steps: int, queued: Sequence[int]) -> None:
        """Go on so many steps later, with as much ahead as there is now."""
        for _ in range(queued[self.step + steps] - queued[self.step]):
            one, step = self.queue.popleft()
            self.fetched_for[one] = max(self.fetched_for[one], step)
        self.step += steps
