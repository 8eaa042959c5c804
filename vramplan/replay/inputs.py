"""What is on the device before a step begins, token ids and labels, images, ..., and the loss that is made of it."""

from __future__ import annotations

from typing import Any

from vramplan.replay.models.modules import Output, Recipe
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.standing import StandingState
from vramplan.replay.tensors import INT64, DType, Shape, Tensor
from vramplan.tuples import NamedTuple


class Input(NamedTuple):
    """One argument of the model: `shape` is that of one sample."""

    name: str
    shape: Shape
    dtype: DType


def inputs_of(model: Any, recipe: Recipe) -> tuple[Input, ...]:
    """The arguments of a model's forward pass in their order: its own `inputs()`, else token ids and labels."""
    own = getattr(model, "inputs", None)
    if own is not None:
        found: tuple[Input, ...] = own()
        return found
    length = recipe.sequence_length
    labels = () if recipe.shape.task == "cls" else (length,)
    given: tuple[Input, ...] = (Input("input_ids", (length,), INT64), Input("labels", labels, INT64))
    if recipe.packed:
        given = (*given, Input("position_ids", (length,), INT64))
    return (*given, Input("attention_mask", (length,), INT64)) if recipe.padded else given


def make_inputs(tape: Tape, inputs: tuple[Input, ...]) -> tuple[list[Tensor], list[StandingState]]:
    """The tensors of a micro-batch that a model takes, and the bytes of all as states.

    A mask of padding beside positions is not taken: the mask that is made of it is all that a replay looks at.
    """
    tensors, states = [], []
    positions = any(name == "position_ids" for name, _, _ in inputs)
    for name, shape, dtype in inputs:
        tensor = tape.constant((tape.batch, *shape), dtype, True, name)
        if not (positions and name == "attention_mask"):
            tensors.append(tensor)
        size = dtype.itemsize
        for n in shape:
            size *= n
        states.append(
            StandingState("inputs", size * tape.batch, 0) if tape.direct else StandingState("inputs", 0, size)
        )
    return tensors, states


class Objective:
    """What the model is given, and how its loss comes to be. As it stands, the model gives its own."""

    divides = True  # the loss by the micro-steps, outside of what makes it

    def __init__(self, setup: Setup, tape: Tape, recipe: Recipe) -> None:
        self.setup, self.tape, self.recipe = setup, tape, recipe

    def inputs(self, model: Any) -> tuple[list[Tensor], list[StandingState]]:
        """The tensors of a micro-batch, and their bytes as states, to which a forward pass may add."""
        return make_inputs(self.tape, inputs_of(model, self.recipe))

    def forward(self, model: Any, arguments: list[Tensor], states: list[StandingState]) -> Output:
        """The model's output with the loss."""
        output: Output = model(*arguments)
        return output

    def returned(self, output: Output) -> Output:
        """What of the output the model has returned."""
        return output
