"""The order of parameters told from a few blocks is that of all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.examples import model, setup
from vramplan.catalog.config_classes import MODEL_TYPES
from vramplan.engines.deepspeed import walk
from vramplan.engines.deepspeed.order import Order
from vramplan.engines.deepspeed.repeats import repeated
from vramplan.planner.checkpoints import segments_of
from vramplan.replay.models.capable import no_checkpointing
from vramplan.replay.models.modules import Recipe
from vramplan.replay.observers import Trained
from vramplan.replay.precision import precision_of
from vramplan.replay.recipe import recipe_of

pytestmark = pytest.mark.closed_form

PLACEMENTS = ("none", "full", "every:2", "layers:[[1,2],[3,4],[5,6],[7,8]]", "selective-op")

WAYS: tuple[dict[str, bool], ...] = (
    {},
    {"with_uses": True},
    {"with_uses": True, "reentrant": True, "asks_inputs": True},
)


def walked(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Order:
    with monkeypatch.context() as whole:
        whole.setattr(walk, "_repeats", lambda recipe, trained: False)
        return walk.order_of(recipe, Trained(), (), **how)


@pytest.mark.sweep(40)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_few_blocks_tell_of_all(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = model(model_type)
    if len(shape.stacks) != 1 or no_checkpointing(shape.family) is not None:
        return
    shape = shape.with_layers(9)
    asked = []

    def told(*short: Any) -> Order | None:
        asked.append(repeated(*short))
        return asked[-1]

    monkeypatch.setattr(walk, "repeated", told)
    for placement in PLACEMENTS:
        recipe = recipe_of(
            setup(shape, image_size=shape.image_size, segments=segments_of(placement, 9)), precision_of("mixed-bf16")
        )
        for how in WAYS if model_type in ("llama", "qwen3_moe") else WAYS[:2]:
            assert walk.order_of(recipe, Trained(), (), **how) == walked(recipe, monkeypatch, **how)
    assert None not in asked
