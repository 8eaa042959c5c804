"""The number of parameters of an architecture, counted where the model is built: the same code that is replayed."""

from __future__ import annotations

from vramplan.engines import engine_of, with_code_of
from vramplan.replay.models import family, is_in_transformers, iteration_of, no_code_for
from vramplan.replay.models.modules import Segment
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of
from vramplan.replay.recorder import Tape
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.replay.techniques import objective_of
from vramplan.values.model import DEFAULT_IMAGE_SIZE, ModelShape

_LENGTH = 8  # tokens: parameters do not depend on it


def parameters_of(shape: ModelShape) -> int:
    """How many parameters the model has, tied ones once: its forward pass makes them all."""
    setup = setup_of(shape)
    if iteration_of(setup.model.family, in_pipeline=False) is not None:
        return replay(setup).parameters
    tape = Tape(2)
    tape.no_grad = True
    recipe = recipe_of(setup, precision_of(setup.precision))
    model = family(setup.model.family)(tape, recipe)
    objective = objective_of(setup, tape, recipe)
    arguments, inputs = objective.inputs(model)
    objective.forward(model, arguments, inputs)
    count = sum(one.elements * one.copies * one.parts for one in tape.parameters)
    for one in tape.parameters:
        one.node = None  # it was its own accumulator: a cycle
    return count


def in_code(shape: ModelShape) -> ModelShape:
    """The shape in code that computes it: that of a training program where Transformers has none."""
    if shape.engine is None and (not is_in_transformers(shape.family) or no_code_for(shape) is not None):
        name = with_code_of(shape.family)[0]
        return shape._replace(family=engine_of(name).families[shape.family])
    return shape


def setup_of(shape: ModelShape) -> Setup:
    """The smallest replay that builds every parameter of the model."""
    return Setup(
        model=in_code(shape),
        precision="amp-bf16",
        sequence_length=min(_LENGTH, shape.max_positions)
        if shape.takes_text
        else 0
        if shape.takes_images
        else shape.shortest,
        image_size=(shape.image_size or DEFAULT_IMAGE_SIZE) if shape.takes_images else None,
        attention="efficient",
        segments=tuple(Segment(1, layers, False) for layers in shape.stacks),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=False,
        hold_outputs=False,
    )
