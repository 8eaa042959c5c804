"""How ZeRO lays out what it partitions: all trained parameters one after the other, cut into equal parts.

Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer); deepspeed/runtime/utils.py,
align_dense_tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

from vramplan.engines.deepspeed.modules import LEAVES, Inside, Modules
from vramplan.replay.asked import AsksInputs
from vramplan.replay.autograd import backward
from vramplan.replay.inputs import inputs_of, make_inputs
from vramplan.replay.models import family
from vramplan.replay.models.modules import CAUSAL_LM, OUTSIDE_LOSSES, Recipe, Segment
from vramplan.replay.observers import Sharding, Trained, train
from vramplan.replay.recorder import Node, Tape, rounded
from vramplan.replay.reentrant import RunsReentrantly
from vramplan.replay.tensors import Parameter
from vramplan.tuples import NamedTuple

PACKED_ITEMSIZE = 2  # bytes of the elements that 4-bit weights are packed in, as the other weights have
ALIGNMENT = 2  # elements of each part that a collective may begin at (nccl_start_alignment_factor)

EARLY = {"opt": "final_layer_norm"}
"""By family what its class creates before the blocks, though forward comes to it after them (modeling_opt.py)."""

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

    def owners(self, one: int) -> Iterator[tuple[int, int, int]]:
        """The parts that a parameter lies in: the first of a run, how many follow, and the elements in each of them.

        There are at most three runs: those that it fills are one, so that a million devices are no more than eight.
        """
        start, end = self.starts[one], self.starts[one + 1]
        while start < end:
            rank, inside = divmod(start, self.part)
            whole = 0 if inside else (end - start) // self.part
            elements = self.part if whole else min(end - start, self.part - inside)
            yield rank, max(whole, 1), elements
            start += max(whole, 1) * elements

    def elements_in(self, one: int, rank: int) -> int:
        """How many elements of a parameter are in a part."""
        low, high = max(self.starts[one], rank * self.part), min(self.starts[one + 1], (rank + 1) * self.part)
        return max(0, high - low)

    def most_loaded(self, *, last: bool) -> int:
        """The part whose parameters, whole, are most; of several such parts the last or the first."""
        ranks = self.telling_ranks
        return max(reversed(ranks) if last else ranks, key=self.whole_elements)

    @cached_property
    def telling_ranks(self) -> tuple[int, ...]:
        """Every part but those inside one parameter, which are alike: of these the first and the last."""
        found = {0, self.shards - 1, min(-(-self.elements // self.part), self.shards - 1) if self.part else 0}
        for start, end in pairwise(self.starts):
            if start < end:
                first, last = start // self.part, (end - 1) // self.part
                found.update(one for one in (first, first + 1, last - 1, last) if first <= one <= last)
        return tuple(sorted(found))


class Flush(NamedTuple):
    """One time that a bucket of gradients is averaged."""

    copies: tuple[int, ...]  # elements of each copy that is made of it, one after the other
    own: tuple[int, ...]  # elements of each piece of it that belongs to this device's part

    @property
    def brings_own(self) -> bool:
        """Whether something of it belongs to this device's part."""
        return bool(self.own)


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
            mine = (layout.elements_in(each, rank) for each in held if each in members)
            found[position] = Flush(copies, tuple(mine))
            held, elements = [], 0
        if one is not None:
            held.append(one)
            elements += layout.sizes[one]
    return found


def _copies(layout: Layout, held: Sequence[int], bucket: int, own: int | None) -> tuple[int, ...]:
    pieces: list[int] = []
    before = -1
    for one in held:
        for first, count, elements in layout.owners(one):
            joins = first == before and first != own
            if joins:
                pieces[-1] += elements
            pieces += [elements] * (count - joins)
            before = first + count - 1
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
    uses: tuple[tuple[int, ...], ...] = ()  # the parameters of each module that has some, as the iteration comes to it
    made: tuple[int, ...] = ()  # the number of each parameter, in the order in which the replay makes them
    trained: tuple[bool, ...] = ()  # whether each parameter is, where those that are not are counted too
    modules: tuple[tuple[int, ...], ...] = ()  # those whose parameters several operators use
    has_leaves: bool = False  # whether these are DeepSpeed's leaves
    kept_bytes: int = 0  # of quantized weights what is no parameter, so that every device has all of it


def order_of(
    recipe: Recipe,
    trained: Trained,
    key: tuple[object, ...],
    *,
    with_uses: bool = False,
    asks_inputs: bool = False,
    reentrant: bool = False,
) -> Order:
    """The order of a model: of a small sample, as its sizes do not matter. `key` says what is trained.

    `with_uses`: modules are followed too, those that checkpoints run again among them, and parameters that are not
    trained have numbers like the others. `asks_inputs`: what the token embeddings give is asked for its gradient.
    `reentrant`: checkpoints are, which leave what they train out of the graph if they are given nothing that needs a
    gradient.
    """
    shape = recipe.shape
    small = recipe._replace(sequence_length=shape.image_tokens + 3, target_length=None)
    if recipe.loss in OUTSIDE_LOSSES.values():  # which is made of what the model returns: the order is that of its own
        small = small._replace(loss=CAUSAL_LM)
    if not with_uses and not reentrant:
        segments = tuple(Segment(1, layers, False) for layers in shape.stacks)
        small = small._replace(segments=segments, recomputes_core=False)
    return _order(small, _Key(trained, (*key, asks_inputs, with_uses, reentrant)))


class _Key:
    """Carries what is trained beside what tells it apart."""

    def __init__(self, trained: Trained, key: tuple[object, ...]) -> None:
        self.trained, self.key = trained, key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=16)
def _order(recipe: Recipe, key: _Key) -> Order:
    tape = Tape(1, direct=True)
    train(tape, key.trained)
    asks_inputs, with_uses, reentrant = (bool(one) for one in key.key[-3:])
    if asks_inputs:
        tape.observe(AsksInputs(tape))
    if reentrant:
        tape.observe(RunsReentrantly(tape))
    noted = _Modules(tape, recipe.shape.family) if with_uses else _Noted(tape)
    tape.enlist(Sharding, noted)
    tape.observe(noted)
    network = family(recipe.shape.family)(tape, recipe)
    arguments, _ = make_inputs(tape, inputs_of(network, recipe))
    output = network(*arguments)
    loss = output.loss
    del output
    backward(tape, loss)
    found = [one for one in tape.parameters if with_uses or one.node is not None]  # as they are registered
    made = [one for one in noted.created if with_uses or one.node is not None]
    early = EARLY.get(recipe.shape.family)
    if early is not None:
        inside = next((i for i, one in enumerate(found) if id(one) in noted.places), len(found))
        moved = [one for one in found[inside:] if id(one) not in noted.places and one.name.startswith(early)]
        found = [*found[:inside], *moved, *(one for one in found[inside:] if one not in moved)]
    numbers = {id(one): i for i, one in enumerate(found)}
    order = Order(
        tuple(_gathered(one) for one in found),
        tuple(noted.places.get(id(one)) for one in found),
        tuple(numbers[id(one)] for one in noted.came),
        tuple(tuple(numbers[id(one)] for one in module) for module in noted.uses),
        tuple(numbers[id(one)] for one in made),
        tuple(one.node is not None for one in found),
        tuple(tuple(numbers[id(one)] for one in module) for module in noted.modules),
        has_leaves=recipe.shape.family in LEAVES,
        kept_bytes=sum(rounded(size) * one.copies for one in made for size in one.quantized[1:]),
    )
    tape.dismiss(Sharding)
    tape.tell(())
    tape.drop_leaves()
    for one in tape.parameters:
        one.node = one.grad = None
    noted.tape = None
    return order


def _gathered(parameter: Parameter) -> int:
    """Elements that a collective gathers of a parameter: of 4-bit weights the 16-bit ones that they are packed in.

    Source: bitsandbytes, nn/modules.py, Params4bit with quant_storage; transformers, docs/source/en/bitsandbytes.md,
    which asks for the element type of the other weights there.
    """
    return -(-parameter.quantized[0] // PACKED_ITEMSIZE) if parameter.quantized else parameter.elements


def members_of(inputs: Sequence[Any]) -> tuple[Parameter, ...]:
    """The parameters among the operands of an operator, themselves or views of those that are trained."""
    found = []
    for one in inputs:
        if one is None or one.storage is not None:
            continue
        parameter = one if type(one) is Parameter else one.node
        if type(parameter) is Parameter and parameter not in found:
            found.append(parameter)
    return tuple(found)


class Used:
    """The backward of an operator: it says that its module is come to, and whether that was said already."""

    def __init__(self, members: tuple[Any, ...], fn: Any, come: Callable[[tuple[Any, ...], bool], None]) -> None:
        self.members, self.fn, self.come = members, fn, come
        self.is_entered = False  # before a checkpoint ran again for its sake

    def __call__(self, grad: Any, saved: Any) -> Any:
        """Its gradients."""
        self.come(self.members, self.is_entered)
        return self.fn(grad, saved)


class _Noted(Sharding):
    """Notes which parameters are in which block."""

    def __init__(self, tape: Tape) -> None:
        self.tape: Tape | None = tape
        self.walks = 0
        self.places: dict[int, Place] = {}
        self.created: list[Parameter] = []
        self.came: list[Parameter] = []
        self.uses: list[tuple[Parameter, ...]] = []  # of modules
        self.modules: list[list[Parameter]] = []  # whose parameters several operators use

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

    def made(self, parameter: Parameter) -> None:
        """A parameter was made."""
        self.created.append(parameter)

    def after_accumulate(self, parameter: Parameter) -> None:
        """A gradient is complete."""
        self.came.append(parameter)


class _Modules(_Noted):
    """Notes the parameters of each module too, as the iteration comes to it."""

    linear_is_function = True

    def __init__(self, tape: Tape, family: str) -> None:
        super().__init__(tape)
        self.several, self.inside = Modules(family), Inside()
        self.modules = self.several.found

    def made(self, parameter: Parameter) -> None:
        """A parameter was made."""
        super().made(parameter)
        self.several.made(parameter)

    def recorded(self, inputs: Sequence[Any], fn: Any) -> Any:
        """An operator has parameters, now and when its backward runs."""
        members = members_of(inputs)
        if not members:
            return fn
        self._come(members)
        return Used(members, fn, lambda those, entered: None if entered else self._come(those))

    def _come(self, members: tuple[Parameter, ...]) -> None:
        module = next((tuple(one) for one in self.modules if members[0] in one), members)
        if self.inside.come(members, module):
            self.uses.append(module)

    def recomputing(self, node: Node) -> None:
        """The module whose backward makes a checkpoint run again is come to before those inside."""
        if type(node.fn) is Used:
            self._come(node.fn.members)
            node.fn.is_entered = True

    def table_reached(self, table: Parameter) -> None:
        """The module of the token embeddings."""
        self.uses.append((table,))
