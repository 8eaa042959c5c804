"""Which shapes a configuration of Transformers can say: every shipped one, whatever is known of its training."""

from __future__ import annotations

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.measure import network, refusals
from vramplan.measure.configurations import more_keys
from vramplan.results.measure import TRACE
from vramplan.values.model import ModelShape

pytestmark = pytest.mark.contract

NOT_OF_A_NETWORK = {"name", "declared_parameters", "published_family", "engine", "unknown_type", "dtype"}


def test_what_is_known_of_a_training_and_of_a_checkpoint_is_not_compared() -> None:
    """No configuration object has the batch of a recipe, nor the element type of the file of weights."""
    assert {*NOT_OF_A_NETWORK, "recipe_global_batch_size"} == set(network._UNCOMPARED)
    assert set(network._UNCOMPARED) <= set(ModelShape._fields)


def test_a_dropout_that_is_asked_for_is_that_of_a_configuration_inside_too() -> None:
    job = build_job({"model": "llama-3.2-11b-vision", "gpu": "h100", "dropout": 0.1})
    assert more_keys(network.with_dropout(job))["text_config"]["dropout"] == 0.1
    assert more_keys(network.with_dropout(job._replace(dropout=None)))["text_config"]["dropout"] == 0.0


def test_the_kernel_of_the_flash_attn_package_is_not_run() -> None:
    job = build_job({"model": "gemma-3-4b", "gpu": "h100", "attention": "flash"})
    with pytest.raises(InputError, match="which is that of the flash-attn package, is not run by this command"):
        refusals.check(job, TRACE)
