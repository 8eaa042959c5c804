"""Experts that are modules of their own, as before Transformers 5.0: those between the ends are played once."""

from __future__ import annotations

import pytest

from tests.engine.examples import model, setup
from tests.engine.test_elsewhere import same
from vramplan.replay.models.modules import Segment
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.job import Adapter
from vramplan.values.model import ModelShape

ADAPTED = {"adapter": Adapter("lora", 4, ("gate_proj", "up_proj", "down_proj")), "precision": "amp-bf16"}
STEPS = {
    "plain": {},
    "adapted": {**ADAPTED, "quantization": "nf4"},
    "halves": {"precision": "amp-bf16", "max_gradient_norm": 1.0, "accumulating": True},
    "foreach": {"optimizer_implementation": "foreach", "ema": True},
    "in backward": {"optimizer_in_backward": True},
}


def separate(model_type: str, experts: int) -> ModelShape:
    """A model of three blocks with so many experts, each a module."""
    shape = model(model_type, layers=3)
    assert shape.experts is not None
    return shape._replace(experts=shape.experts._replace(separate=True, routed=experts, active=2))


def example(model_type: str, experts: int, step: str, *, checkpointed: bool = False) -> Setup:
    """An iteration of such a model."""
    return setup(separate(model_type, experts), segments=(Segment(3, 1, checkpointed),), **STEPS[step])


@pytest.mark.closed_form
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("model_type", "experts", "batch"), [("qwen2_moe", 7, 3), ("olmoe", 4, 1)])
def test_the_quick_replay_is_that_of_every_expert(
    model_type: str, experts: int, batch: int, step: str, checkpointed: bool
) -> None:
    one = example(model_type, experts, step, checkpointed=checkpointed)
    same(replay(one, batch=min(batch, 2)), replay(one, batch=batch, direct=True), batch)


@pytest.mark.contract
def test_more_experts_take_no_more_replay() -> None:
    few, many = (len(replay(example("qwen3_moe", experts, "adapted")).requests) for experts in (8, 128))
    assert many == few
