"""How ZeRO lays out what it partitions: all trained parameters one after the other, cut into equal parts.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer); deepspeed/runtime/utils.py,
align_dense_tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from vramplan.memory.inputs import inputs_of, make_inputs
from vramplan.models import family
from vramplan.models.modules import Recipe, Segment
from vramplan.spec import Adapter
from vramplan.tape.engine import backward
from vramplan.tape.tape import Tape, Trained
from vramplan.tape.tensors import Parameter, Tensor

ALIGNMENT = 2  # elements of each part that a collective may begin at (nccl_start_alignment_factor)

Place = tuple[int, int]  # the walk over blocks, and the block's number in it


class Layout:
    """Parameters one after the other in a flat buffer, padded, in as many equal parts as there are shards."""

    def __init__(self, sizes: Sequence[int], shards: int) -> None:
        self.sizes = tuple(sizes)  # elements of each parameter
        self.shards = shards
        self.starts = (0, *accumulate(sizes))
        self.elements = self.starts[-1]
        unit = ALIGNMENT * shards
        self.padded = -(-self.elements // unit) * unit
        self.part = self.padded // shards

    def members(self, rank: int) -> range:
        """The parameters of which something is in a part."""
        low, high = rank * self.part, min((rank + 1) * self.part, self.elements)
        if low >= high:
            return range(0)
        return range(bisect_right(self.starts, low) - 1, bisect_right(self.starts, high - 1))

    def whole_elements(self, rank: int) -> int:
        """Elements of the parameters of which something is in a part, each of them whole."""
        members = self.members(rank)
        return self.starts[members.stop] - self.starts[members.start] if members else 0

    def slices(self, rank: int) -> list[int]:
        """Elements of each parameter that are in a part."""
        low, high = rank * self.part, (rank + 1) * self.part
        return [min(self.starts[i + 1], high) - max(self.starts[i], low) for i in self.members(rank)]

    def owners(self, one: int) -> list[tuple[int, int]]:
        """The parts that a parameter lies in, and how many of its elements are in each."""
        start, end = self.starts[one], self.starts[one + 1]
        found = []
        while start < end:
            rank = start // self.part
            until = min(end, (rank + 1) * self.part)
            found.append((rank, until - start))
            start = until
        return found

    def most_loaded(self, *, last: bool) -> int:
        """The part whose parameters, whole, are most; of several such parts the last or the first."""
        ranks = range(self.shards)
        return max(reversed(ranks) if last else ranks, key=self.whole_elements)


class Flush(NamedTuple):
    """One time that a bucket of gradients is averaged."""

    copies: tuple[int, ...]  # elements of each copy that is made of it, one after the other
    brings_own: bool  # something of it belongs to this device's part


def flushes(
    layout: Layout, arrivals: Sequence[int], bucket: int, rank: int, *, by_parameter: bool = False
) -> dict[int, Flush]:
    """When buckets are averaged, by how many gradients have come until then.

    A bucket is averaged when the next gradient has no room in it, and when all are there. Neighbouring pieces that
    belong to one part are one piece, but not where each goes into a buffer of its own parameter.
    Source: stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads, average_tensor, allreduce_and_scatter.
    """
    found: dict[int, Flush] = {}
    members = layout.members(rank)
    held: list[int] = []
    elements = 0
    for position, one in enumerate((*arrivals, None)):
        if held and (one is None or elements + layout.sizes[one] > bucket):
            copies = _copies(layout, held, bucket, rank if by_parameter else None)
            found[position] = Flush(copies, any(each in members for each in held))
            held, elements = [], 0
        if one is not None:
            held.append(one)
            elements += layout.sizes[one]
    return found


def _copies(layout: Layout, held: Sequence[int], bucket: int, own: int | None) -> tuple[int, ...]:
    pieces: list[int] = []
    before = -1
    for one in held:
        for owner, elements in layout.owners(one):
            if owner == before and owner != own:
                pieces[-1] += elements
            else:
                pieces.append(elements)
            before = owner
    copies, count, size = [], 0, 0
    for piece in pieces:
        count, size = count + 1, size + piece
        if size > bucket:
            copies.append(size if count > 1 else 0)
            count = size = 0
    copies.append(size if count > 1 else 0)
    return tuple(size for size in copies if size)


class Order(NamedTuple):
    """What is to be known of a model's trained parameters before it runs, block by block."""

    sizes: tuple[int, ...]  # elements
    places: tuple[Place | None, ...]  # None: in no block
    arrivals: tuple[int, ...]  # in which order backward completes their gradients


def order_of(recipe: Recipe, trained: Trained | None, key: tuple[object, ...]) -> Order:
    """The order of a model: of a small sample, as its sizes do not matter. `key` says what is trained."""
    shape = recipe.shape
    small = recipe._replace(
        sequence_length=shape.image_tokens + 3,
        target_length=None,
        segments=tuple(Segment(1, layers, False) for layers in shape.stacks),
        recomputes_core=False,
    )
    return _order(small, _Key(trained, key))


class _Key:
    """Carries what is trained beside what tells it apart."""

    def __init__(self, trained: Trained | None, key: tuple[object, ...]) -> None:
        self.trained, self.key = trained, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=16)
def _order(recipe: Recipe, key: _Key) -> Order:
    tape = Tape(1, direct=True)
    tape.trained = key.trained
    noted = _Noted(tape)
    tape.sharding = noted
    came: list[Parameter] = []
    tape.after_accumulation = came.append
    network = family(recipe.shape.family)(tape, recipe)
    arguments, _ = make_inputs(tape, inputs_of(network, recipe))
    output = network(*arguments)
    loss = output.loss
    del output
    backward(tape, loss)
    found = [one for one in tape.parameters if one.node is not None]
    numbers = {id(one): i for i, one in enumerate(found)}
    order = Order(
        tuple(one.elements for one in found),
        tuple(noted.places.get(id(one)) for one in found),
        tuple(numbers[id(one)] for one in came),
    )
    tape.drop_leaves()
    for one in tape.parameters:
        one.node = one.grad = None
    noted.tape = None
    return order


class _Noted:
    """Notes which parameters are in which block."""

    every_block_of_a_checkpoint = False

    def __init__(self, tape: Tape) -> None:
        self.tape: Tape | None = tape
        self.walks = 0
        self.places: dict[int, Place] = {}

    def units(self, make: Any) -> Any:
        """Each block as it is."""
        walk, self.walks = self.walks, self.walks + 1

        def build(number: int) -> Any:
            assert self.tape is not None
            start = len(self.tape.parameters)
            block = make(number)
            self.places.update((id(one), (walk, number)) for one in self.tape.parameters[start:])
            return block

        return build

    def apart(self) -> list[int]:
        """Every block is played on its own anyway."""
        return []

    def made(self, parameter: Parameter) -> None:
        """Blocks are looked at as a whole."""

    def after_model(self, loss: Tensor) -> Tensor:
        """Nothing is gathered."""
        return loss


def key_of(frozen: tuple[str, ...], adapter: Adapter | None, quantization: str | None) -> tuple[object, ...]:
    """What tells apart what is trained."""
    return (frozen, adapter, quantization)
