"""The number of parameters of an architecture, counted where the model is built: the same code that is replayed."""

from __future__ import annotations

from vramplan.replay.models.modules import Segment
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.model import DEFAULT_IMAGE_SIZE, ModelShape

_LENGTH = 8  # tokens: parameters do not depend on it


def parameters_of(shape: ModelShape) -> int:
    """How many parameters the model has, tied ones once."""
    return replay(_setup_of(shape)).parameters


def sizes_of(shape: ModelShape) -> tuple[int, ...]:
    """Elements of each parameter that is trained."""
    from vramplan.engines.deepspeed.layout import order_of
    from vramplan.replay.precision import precision_of
    from vramplan.replay.recipe import recipe_of

    setup = _setup_of(shape)
    return order_of(recipe_of(setup, precision_of(setup.precision)), None, ()).sizes


def _setup_of(shape: ModelShape) -> Setup:
    if shape.family == "mpt" and shape.positions == "learned":
        shape = shape._replace(family="foundry")  # the code that has them
    return Setup(
        model=shape,
        precision="amp-bf16",
        sequence_length=min(_LENGTH, shape.max_positions) if shape.takes_text else 0,
        image_size=(shape.image_size or DEFAULT_IMAGE_SIZE) if shape.takes_images else None,
        attention="efficient",
        segments=tuple(Segment(1, layers, False) for layers in shape.stacks),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=False,
        hold_outputs=False,
    )
