"""Models with linear attention in a job: which blocks have it, which code is told, and what generating keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.job.configured import job_of, refusal_of, shape_of
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.setups import setup_of
from vramplan.replay.evaluation import generation_bytes
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

SMALL = {
    "family": "qwen3_next",
    "transformers_model_type": "qwen3_5_text",
    "layers": 4,
    "hidden_size": 64,
    "attention_heads": 4,
    "head_size": 16,
    "intermediate_size": 96,
    "vocabulary_size": 100,
    "linear_attention": {"key_heads": 1, "value_heads": 2, "key_size": 16, "value_size": 24},
}


def job(model: Any = SMALL, **keys: Any) -> ResolvedJob:
    return job_of(model, **keys)


def of_config(folder: Path, **keys: Any) -> Any:
    return shape_of(folder, **{"model_type": "qwen3_5_text", **keys})


def refused(folder: Path, **keys: Any) -> str:
    return refusal_of(folder, **{"model_type": "qwen3_5_text", **keys})


@pytest.mark.contract
def test_the_blocks_that_have_it_are_those_of_the_configuration(tmp_path: Path) -> None:
    def layers(**keys: Any) -> tuple[int, ...]:
        return of_config(tmp_path, num_hidden_layers=5, **keys).linear_attention.layers

    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"]
    assert layers() == (0, 1, 2, 4)
    assert layers(full_attention_interval=2) == (0, 2, 4)
    assert layers(layer_types=kinds) == (1, 2)
    assert "mamba is not modelled" in refused(tmp_path, num_hidden_layers=1, layer_types=["mamba"])
    assert "2 entries for 5 blocks" in refused(tmp_path, num_hidden_layers=5, layer_types=kinds[:2])


@pytest.mark.contract
def test_a_configuration_with_images_is_read_as_such(tmp_path: Path) -> None:
    text = {"num_hidden_layers": 2, "hidden_size": 96, "rope_parameters": {"partial_rotary_factor": 0.5}}
    vision = {"depth": 3, "out_hidden_size": 96}
    shape = of_config(tmp_path, model_type="qwen3_5", text_config=text, vision_config=vision)
    assert (shape.family, shape.stacks, shape.partial_rotary_factor) == ("qwen3_5", (3, 2), 0.5)
    narrow = {"depth": 3, "out_hidden_size": 64}
    assert "in a text of 96" in refused(tmp_path, model_type="qwen3_5", text_config=text, vision_config=narrow)


@pytest.mark.contract
def test_heads_of_values_share_those_of_keys_evenly() -> None:
    with pytest.raises(InputError, match="3 heads of values cannot share 2 heads of keys evenly"):
        job({**SMALL, "linear_attention": {"key_heads": 2, "value_heads": 3}})


@pytest.mark.contract
def test_which_code_is_modelled_is_told_and_read_back() -> None:
    plain = job()
    told = {one.key: one.why for one in plain.assumptions}
    assert "flash-linear-attention and causal-conv1d are not installed" in told["model.linear_attention"]
    assert not any("packed" in one for one in plain.warnings)
    assert any("flash-linear-attention" in one for one in job(packing=True, attention="flash").warnings)
    assert build_job(job_to_dict(plain)).model == plain.model


@pytest.mark.closed_form
def test_a_state_does_not_grow_with_the_text() -> None:
    """Of four blocks one keeps keys and values: 8 bytes of fp32 for each of its 64 elements and each token, twice."""
    pinned = job(micro_batch_size=1, activation_checkpointing="none", precision="fp32", attention="eager")
    setup = setup_of(pinned, "none", False)
    record = replay(setup, batch=1)
    short, long = (generation_bytes(setup, record, 1, length) for length in (512, 1024))
    each = 4 * pinned.model.key_value_heads * pinned.model.head_size
    assert long - short == 3 * each * 512  # keys, values, and the old values of the block beside its new ones
