"""The derivation of one job as frozen values: what `vramplan explain` prints. Sizes are integer bytes.

Shapes are those at the judged micro-batch. Names of tensors begin with `block.N` inside of a block; `block` without a
number stands for the tensors of that name in all blocks.
"""

from __future__ import annotations

from vramplan.results import FitResult
from vramplan.tuples import NamedTuple

Shape = tuple[int, ...]


class Rule(NamedTuple):
    """What one operator allocates, saves and frees, as the function that says so describes it."""

    name: str
    where: str  # module and function
    summary: str
    details: tuple[str, ...]
    saves: tuple[tuple[str, str], ...]  # (name of the tensor in the rule, which gradient needs it)
    backward: str | None
    source: str


class Blocks(NamedTuple):
    """The blocks that one replayed block stands for: `first`, then steps of `distances`, each taken `times`."""

    first: int
    distances: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    @property
    def copies(self) -> int:
        """How many there are."""
        copies = 1
        for times in self.times:
            copies *= times
        return copies

    def numbers(self) -> tuple[int, ...]:
        """All of them, counted from 0."""
        found = [self.first]
        for distance, times in zip(self.distances, self.times, strict=True):
            found = [number + distance * step for number in found for step in range(times)]
        return tuple(sorted(set(found)))


class Made(NamedTuple):
    """One tensor that an operator allocates; `bytes` is one copy of it, in allocator blocks."""

    name: str
    operator: str
    shape: Shape | None  # None: scratch inside a kernel
    dtype: str | None
    bytes: int
    copies: int  # in one block, or of the whole step
    component: str
    role: str  # output | gradient | scratch
    kept: bool  # alive at the end of forward, for backward
    at_peak: bool
    rule: str | None


class Saved(NamedTuple):
    """One tensor that an operator keeps for its backward, and which gradient needs it."""

    tensor: str
    role: str  # what the rule calls it
    shape: Shape
    dtype: str
    bytes: int  # of the storage; 0 for a weight or an input, which is there anyway
    why: str
    recomputed: bool  # under a checkpoint: kept only from recomputation to backward


class Operator(NamedTuple):
    """One operator of the step, in one direction."""

    name: str
    operator: str
    module: str
    rule: str | None
    inside: tuple[str, ...]  # the rules that call this one, from the inner to the outer
    makes: tuple[Made, ...]
    saves: tuple[Saved, ...]
    frees_bytes: int  # what dies from the beginning of this operator to that of the next


class Section(NamedTuple):
    """Consecutive operators: the embedding, a block, the head and the loss, in one direction, or the step."""

    part: str  # embedding | block | head | step
    direction: str  # forward | recompute | backward | step
    blocks: Blocks | None
    checkpointed: bool
    operators: tuple[Operator, ...]
    made_bytes: int  # all that is allocated here, dead or alive, one copy of the block
    kept_bytes: int  # of this, what the end of forward holds for backward


class StateTensor(NamedTuple):
    """One tensor of each block, or one outside of them, that is alive during the whole iteration."""

    name: str
    shape: Shape
    dtype: str
    copies: int
    bytes: int  # of one copy, in allocator blocks
    total_bytes: int


class State(NamedTuple):
    """One component that is alive during the whole iteration."""

    component: str
    formula: str
    bytes: int
    tensors: tuple[StateTensor, ...]


class Alive(NamedTuple):
    """Tensors of one name that are alive at the peak."""

    name: str
    component: str
    copies: int
    bytes: int  # of one copy
    total_bytes: int


class Top(NamedTuple):
    """The peak: the moment, and everything alive there. `alive` sums to `allocated_bytes`."""

    phase: str
    operator: str
    tensor: str | None  # whose birth reached it
    allocated_bytes: int
    alive: tuple[Alive, ...]


class Keeper(NamedTuple):
    """An operator that keeps a tensor for its backward."""

    operator: str
    role: str
    why: str


class Point(NamedTuple):
    """How many copies of a tensor are alive after a moment of the step."""

    moment: str
    copies: int
    bytes: int


class Life(NamedTuple):
    """One tensor from birth to death."""

    name: str
    shape: Shape | None
    dtype: str | None
    bytes: int  # of one copy
    copies: int
    blocks: Blocks | None
    component: str
    components: tuple[str, ...]  # in the order in which it is counted under them
    state: bool  # alive during the whole iteration
    born: str
    born_phase: str | None
    rule: str | None
    keepers: tuple[Keeper, ...]
    views: tuple[str, ...]  # operators that only look at its storage
    at_peak: bool
    copies_at_peak: int
    died: str
    died_phase: str | None
    points: tuple[Point, ...]


class Totals(NamedTuple):
    """The sums, equal to those of `fit`."""

    states_bytes: int
    saved_embedding_bytes: int
    saved_blocks_bytes: int
    saved_head_bytes: int
    saved_bytes: int
    components: tuple[tuple[str, int], ...]
    allocated_bytes: int


class Explanation(NamedTuple):
    """The whole answer of `vramplan explain`."""

    fit: FitResult
    block: int | None  # the block that is shown
    states: tuple[State, ...]
    sections: tuple[Section, ...]
    peak: Top
    rules: tuple[Rule, ...]
    totals: Totals
    tensor: Life | None
