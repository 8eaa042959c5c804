"""The models that checkpoints are placed in, as the search sees them: their stacks, and what each block is."""

from __future__ import annotations

from collections.abc import Callable

from vramplan.planner.checkpoints import segments_in, spelled
from vramplan.planner.placement.labels import Label, Subject
from vramplan.planner.placement.optimal import Placement
from vramplan.replay.models.parts import block_kinds
from vramplan.replay.models.windows import has_window
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.values.model import ModelShape

PERIODS = 3  # of a pattern of blocks that show everything


def subjects_of(setup: Setup, played: Callable[[Setup], Record]) -> tuple[Subject, Subject]:
    """A model, and one of the same blocks but fewer of them; `played` gives the record of an iteration."""

    def subject(shape: ModelShape) -> Subject:
        def placed(placement: Placement) -> Record:
            return played(setup._replace(model=shape, segments=segments_in(spelled(placement), shape.stacks)))

        return Subject(tuple(layers for layers in shape.stacks if layers), labels_of(shape), placed)

    model = subject(setup.model)
    fewer = shortened(setup.model)
    return model, model if fewer == setup.model else subject(fewer)


def labels_of(shape: ModelShape) -> tuple[Label, ...]:
    """What each block is."""
    stacks = [layers for layers in shape.stacks if layers]
    dense = () if shape.experts is None else shape.experts.dense_layers
    kinds = block_kinds(shape)
    labels = []
    for stack, layers in enumerate(stacks):
        for i in range(layers):
            first, last = i == 0, i + 1 == layers
            if len(stacks) > 1:
                labels.append(Label(stack, first, last, (stack, first), None))
            else:
                window = has_window(shape, i)
                labels.append(Label(stack, first, last, (kinds[i], window), (window, i in dense)))
    return tuple(labels)


def shortened(shape: ModelShape) -> ModelShape:
    """A model of the same kinds of blocks, but fewer of them: of a pattern a few periods are enough."""
    pattern = shape.sliding_window_pattern
    if pattern is None or len(shape.stacks) > 1 or shape.key_value_sharing_layers:
        return shape
    fewer = PERIODS * pattern + shape.layers % pattern
    return shape.with_layers(min(shape.layers, fewer))
