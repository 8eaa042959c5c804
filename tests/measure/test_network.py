"""Which shapes a configuration of Transformers can say: every shipped one, whatever is known of its training."""

from __future__ import annotations

import pytest

from vramplan.measure import network
from vramplan.values.model import ModelShape

pytestmark = pytest.mark.contract

NOT_OF_A_NETWORK = {"name", "declared_parameters", "published_family", "engine", "unknown_type", "dtype"}


def test_what_is_known_of_a_training_and_of_a_checkpoint_is_not_compared() -> None:
    """No configuration object has the batch of a recipe, nor the element type of the file of weights."""
    assert {*NOT_OF_A_NETWORK, "recipe_global_batch_size"} == set(network._UNCOMPARED)
    assert set(network._UNCOMPARED) <= set(ModelShape._fields)
