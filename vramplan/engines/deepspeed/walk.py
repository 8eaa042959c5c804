"""The order of a model's parameters and of their use, noted while a small sample of it runs forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from vramplan.engines.deepspeed.modules import LEAVES, Around, ModuleRun, OuterEntry
from vramplan.engines.deepspeed.order import Order, Place
from vramplan.engines.deepspeed.repeats import repeated, shortened
from vramplan.replay.asked import AsksInputs
from vramplan.replay.autograd import backward
from vramplan.replay.inputs import Objective, inputs_of, make_inputs
from vramplan.replay.models import family
from vramplan.replay.models.modules import CAUSAL_LM, OUTSIDE_LOSSES, SCORED, Recipe, Segment, Slice
from vramplan.replay.models.parts import block_kinds, blocks_are_alike, counts_blocks
from vramplan.replay.observers import Sharding, Trained, train
from vramplan.replay.operators.loss_parts import sum_all
from vramplan.replay.recorder import Node, Tape, rounded
from vramplan.replay.reentrant import RunsReentrantly
from vramplan.replay.techniques.adapters import OWN
from vramplan.replay.tensors import Parameter
from vramplan.tuples import NamedTuple

Maker = Callable[[Tape, Recipe], Objective]
"""Makes what gives the model its inputs."""

EARLY = {"opt": "final_layer_norm"}
"""By family what its class creates before the blocks, though forward comes to it after them (modeling_opt.py)."""


def order_of(
    recipe: Recipe,
    trained: Trained,
    key: tuple[object, ...],
    *,
    with_uses: bool = False,
    asks_inputs: bool = False,
    reentrant: bool = False,
    forward_alone: bool = False,
    linear_is_function: bool = True,
    virtual_tokens: TokensAhead | None = None,
) -> Order:
    """The order of a model: of a small sample, as its sizes do not matter. `key` says what is trained.

    `with_uses`: modules are followed too, those that checkpoints run again among them, and parameters that are not
    trained have numbers like the others. `asks_inputs`: what the token embeddings give is asked for its gradient.
    `reentrant`: checkpoints are, which leave what they train out of the graph if they are given nothing that needs a
    gradient. `forward_alone`: gradients are off, and there is no backward. `linear_is_function`: that of `Sharding`,
    where modules are followed. `virtual_tokens`: how many come before those of a text, and who puts them there.
    """
    shape = recipe.shape
    in_parts = recipe.tiling is not None or ":" in recipe.loss  # of which there are as many as the sequence has
    length = recipe.sequence_length if in_parts else shape.shortest
    if virtual_tokens is not None and not in_parts:
        length += virtual_tokens.number
    small = recipe._replace(sequence_length=length, target_length=None)
    # what is made of what the model returns has the order of its own loss, unless the head is no module then
    if recipe.loss in OUTSIDE_LOSSES.values() and not (with_uses and recipe.loss in SCORED):
        small = small._replace(loss=CAUSAL_LM)
    if not with_uses and not reentrant:
        segments = tuple(Segment(1, layers, False) for layers in shape.stacks)
        small = small._replace(segments=segments, recomputes_core=False)
    maker = None if virtual_tokens is None else virtual_tokens.maker
    named = _Key(trained, (*key, linear_is_function, forward_alone, asks_inputs, with_uses, reentrant), maker)
    short = shortened(small.segments) if _repeats(small, trained) and not forward_alone else None
    if short is not None:
        segments, units = short
        blocks = sum(segment.times * segment.blocks for segment in segments)
        found = repeated(_order(small._replace(shape=shape.with_layers(blocks), segments=segments), named), units)
        if found is not None:
            return found
    return _order(small, named)


def _repeats(recipe: Recipe, trained: Trained) -> bool:
    """Whether every block is as the others, so that few of them tell of all."""
    shape = recipe.shape
    if counts_blocks(shape.family) or recipe.slice != Slice():
        return False
    if len(shape.stacks) != 1 or len(set(block_kinds(shape))) != 1:
        return False
    if len({trained.block(number) for number in range(shape.layers)}) != 1:
        return False
    return blocks_are_alike(shape, recipe.sequence_length, recipe.attention)


class TokensAhead(NamedTuple):
    """Those that an adapter puts before a text."""

    number: int  # in the length of a sequence
    maker: Maker


class _Key:
    """Carries what is trained, and who gives the model its inputs, beside what tells both apart."""

    def __init__(self, trained: Trained, key: tuple[object, ...], maker: Maker | None) -> None:
        self.trained, self.key, self.maker = trained, key, maker

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=16)
def _order(recipe: Recipe, key: _Key) -> Order:
    tape = Tape(1, direct=True)
    train(tape, key.trained.again())
    forward_alone, asks_inputs, with_uses, reentrant = (bool(one) for one in key.key[-4:])
    if asks_inputs:
        tape.observe(AsksInputs(tape))
    if reentrant:
        tape.observe(RunsReentrantly(tape))
    noted = _Modules(tape, recipe.shape.family) if with_uses else _BlocksNoted(tape)
    noted.linear_is_function = with_uses and bool(key.key[-5])
    tape.enlist(Sharding, noted)
    tape.observe(noted)
    network = family(recipe.shape.family)(tape, recipe)
    objective = None if key.maker is None else key.maker(tape, recipe)
    arguments, states = (
        make_inputs(tape, inputs_of(network, recipe)) if objective is None else objective.inputs(network)
    )
    tape.no_grad = forward_alone
    output: Any = network(*arguments) if objective is None else objective.forward(network, arguments, states)
    loss = output.loss if recipe.loss not in SCORED else sum_all(output.logits.log_probabilities)
    del output
    if noted.asked:  # before anything else, and when backward begins
        noted.uses.insert(0, noted.asked)
        noted.uses += [] if forward_alone else [noted.asked]
    if not forward_alone:
        backward(tape, loss)
    found = [one for one in tape.parameters if with_uses or one.node is not None]  # as they are registered
    if objective is not None:  # what makes virtual tokens is a module behind the model
        found.sort(key=lambda one: OWN in one.part)
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
        tuple(tuple(numbers[id(one)] for one in leaf) for leaf in noted.leaves),
        asked=tuple(numbers[id(one)] for one in noted.asked),
        eight_bits=tuple(_has_eight_bits(one) for one in found) if any(map(_has_eight_bits, found)) else (),
        kept_bytes=sum(rounded(size) * one.copies for one in made for size in _kept(one)),
    )
    tape.dismiss(Sharding)
    tape.tell(())
    tape.drop_leaves()
    for one in tape.parameters:
        one.node = one.grad = None
    noted.tape = None
    return order


def _gathered(parameter: Parameter) -> int:
    """Elements that a collective gathers of a parameter: of 4-bit weights those that they are packed in.

    Source: bitsandbytes, nn/modules.py, Params4bit with quant_storage; transformers, docs/source/en/bitsandbytes.md,
    which asks for the element type of the other weights there.
    """
    if not parameter.quantized or _has_eight_bits(parameter):
        return parameter.elements
    return -(-parameter.quantized[0] // parameter.dtype.itemsize)


def _has_eight_bits(parameter: Parameter) -> bool:
    return len(parameter.quantized) > 1 and parameter.quantized[0] == parameter.elements


def _kept(parameter: Parameter) -> tuple[int, ...]:
    """Bytes of the tensors that every device has of a quantized weight: what is no parameter.

    The state of a layer of 8 bits has its whole weight, which the parameter looked at when it was cut.
    Source: bitsandbytes 0.50.2, nn/modules.py, Linear8bitLt.init_8bit_state.
    """
    return parameter.quantized if _has_eight_bits(parameter) else parameter.quantized[1:]


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


def is_addmm(inputs: Sequence[Any], members: Sequence[int]) -> bool:
    """Whether an operator is that of a linear layer with a bias: it comes first, then the input and the weight."""
    if len(members) != len(("bias", "weight")) or inputs[0] is None or inputs[0].storage is not None:
        return False
    return inputs[1] is not None and inputs[1].storage is not None


class Used:
    """The backward of an operator: it says that its module is come to, and whether that was said already."""

    def __init__(self, members: tuple[Any, ...], fn: Any, come: Callable[[tuple[Any, ...], bool], None]) -> None:
        self.members, self.fn, self.come = members, fn, come
        self.is_entered = False  # before a checkpoint ran again for its sake

    def __call__(self, grad: Any, saved: Any) -> Any:
        """Its gradients."""
        self.come(self.members, self.is_entered)
        return self.fn(grad, saved)


class _BlocksNoted(Sharding):
    """Notes which parameters are in which block."""

    def __init__(self, tape: Tape) -> None:
        self.tape: Tape | None = tape
        self.walks = 0
        self.places: dict[int, Place] = {}
        self.created: list[Parameter] = []
        self.came: list[Parameter] = []
        self.uses: list[tuple[Parameter, ...]] = []  # of modules
        self.leaves: list[tuple[Parameter, ...]] = []  # blocks of experts whose modules inside are not looked at
        self.asked: tuple[Parameter, ...] = ()  # by the module of the whole model

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


class _Modules(_BlocksNoted):
    """Notes the parameters of each module too, as the iteration comes to it."""

    def __init__(self, tape: Tape, family: str) -> None:
        super().__init__(tape)
        self.has_leaves, self.around = family in LEAVES, Around()
        self.entry: ModuleRun | None = None  # the module of several operators that runs
        self.in_backward: ModuleRun | None = None

    def module_entered(self, inputs: tuple[Any, ...], parameters: tuple[Parameter, ...]) -> None:
        """A norm."""
        self.entry = ModuleRun(parameters, inputs)
        self._come(parameters)

    def module_over(self) -> None:
        """It has run."""
        self.entry = None

    def outer_entered(
        self, is_told: bool, own: tuple[Parameter, ...], read: tuple[Parameter, ...], whole: tuple[Parameter, ...]
    ) -> None:
        """A module with others inside."""
        is_leaf = self.has_leaves and bool(whole)
        own = whole if is_leaf else self.around.left(own)
        entry = OuterEntry(own, (*own, *read), is_told, is_leaf)
        if self.around.enter(entry):
            self._use(entry.members)
            if is_leaf and whole not in self.leaves:
                self.leaves.append(whole)

    def outer_over(self) -> None:
        """It has run."""
        self.around.leave()

    def asked_by_model(self, weight: Parameter) -> None:
        """The head of a loss that multiplies by itself."""
        self.asked = (weight,)

    def recorded(self, inputs: Sequence[Any], fn: Any) -> Any:
        """An operator has parameters, or a module around it has, now and when its backward runs."""
        entry, outer = self.entry, self.around.forward
        if entry is not None:
            return Used(entry.members, fn, lambda those, entered: self._come_back(outer, entry, those, entered))
        members = members_of(inputs)
        if self.around.owns(members) or (members and members == self.asked):
            members = ()
        if not members and not outer:
            return fn
        self._come(members)
        return Used(members, fn, lambda those, entered: self._come_again(outer, those, entered))

    def _come_back(
        self, outer: tuple[OuterEntry, ...], entry: ModuleRun, members: tuple[Parameter, ...], entered: bool
    ) -> None:
        self._come_around(outer)
        if not entered and self.in_backward is not entry:
            self._come(members)
        self.in_backward = entry

    def _come_again(self, outer: tuple[OuterEntry, ...], members: tuple[Parameter, ...], entered: bool) -> None:
        self._come_around(outer)
        if not entered:
            self._come(members)

    def _come_around(self, outer: tuple[OuterEntry, ...]) -> None:
        for one in self.around.come_back(outer)[1]:
            self._use(one.members)

    def _use(self, members: tuple[Parameter, ...]) -> None:
        if members:
            self.uses.append(members)

    def _come(self, members: tuple[Parameter, ...]) -> None:
        self.in_backward = None
        self._use(members)

    def recomputing(self, node: Node) -> None:
        """The module whose backward makes a checkpoint run again is come to before those inside."""
        if type(node.fn) is Used:
            node.fn.come(node.fn.members, False)
            node.fn.is_entered = True

    def module_reached(self, module: tuple[Parameter, ...]) -> None:
        """That of the token embeddings, or of the patches of images."""
        self.uses.append(module)
