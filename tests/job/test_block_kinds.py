"""Models whose blocks differ: heads of two sizes, inputs for each layer, and keys that blocks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.job.configured import job_of, refusal_of, shape_of
from vramplan.job import build_job, job_to_dict
from vramplan.planner.setups import setup_of
from vramplan.replay.evaluation import generation_bytes
from vramplan.replay.models.gemma4 import is_full, sharing_of
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

SMALL = {
    "family": "gemma4",
    "layers": 6,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 1,
    "head_size": 16,
    "full_head_size": 32,
    "intermediate_size": 96,
    "vocabulary_size": 100,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "layer_input_size": 8,
    "layer_input_vocabulary_size": 100,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def job(model: Any = SMALL, **keys: Any) -> ResolvedJob:
    return job_of(model, **keys)


def of_config(folder: Path, **keys: Any) -> Any:
    return shape_of(folder, **{"model_type": "gemma4_text", **keys})


def refused(folder: Path, **keys: Any) -> str:
    return refusal_of(folder, **{"model_type": "gemma4_text", **keys})


@pytest.mark.contract
def test_the_kinds_of_blocks_are_those_of_the_configuration(tmp_path: Path) -> None:
    plain = of_config(tmp_path, num_hidden_layers=8)
    assert [is_full(plain, i) for i in range(8)] == [i in (5, 7) for i in range(8)]  # the last one is forced
    listed = of_config(tmp_path, num_hidden_layers=5, layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING])
    assert [is_full(listed, i) for i in range(5)] == [False, True, False, True, True]
    assert "only every n-th block" in refused(tmp_path, num_hidden_layers=4, layer_types=[SLIDING, FULL, FULL, SLIDING])
    assert "2 entries for 5 blocks" in refused(tmp_path, num_hidden_layers=5, layer_types=[SLIDING, FULL])


@pytest.mark.contract
def test_older_and_newer_files_say_the_same_of_the_heads(tmp_path: Path) -> None:
    kinds = {"num_hidden_layers": 2, "layer_types": [SLIDING, FULL], "attention_k_eq_v": True}
    older = of_config(tmp_path, **kinds, global_head_dim=128, num_global_key_value_heads=2)
    newer = of_config(tmp_path, **kinds, per_layer_config={"1": {"head_dim": 128, "num_key_value_heads": 2}})
    assert older == newer
    assert (older.full_head_size, older.full_key_value_heads, older.keys_as_values) == (128, 2, True)
    without = of_config(tmp_path, **{**kinds, "attention_k_eq_v": False}, num_global_key_value_heads=2)
    assert without.full_key_value_heads is None  # the class takes them with keys as values alone
    assert "only equal entries" in refused(tmp_path, **kinds, per_layer_config={"0": {"head_dim": 128}})


@pytest.mark.contract
def test_nothing_is_said_by_zero(tmp_path: Path) -> None:
    plain = of_config(tmp_path, hidden_size_per_layer_input=0, num_kv_shared_layers=0, num_experts=8)
    assert (plain.layer_input_size, plain.key_value_sharing_layers, plain.experts) == (None, 0, None)
    experts = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 64}
    assert of_config(tmp_path, enable_moe_block=True, **experts).experts.routed == 8


@pytest.mark.contract
def test_what_makes_no_network_is_refused(tmp_path: Path) -> None:
    types = [SLIDING, FULL, SLIDING, FULL]
    few = refused(tmp_path, num_hidden_layers=4, layer_types=types, num_kv_shared_layers=3)
    assert "leave no block of each kind" in few
    without = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 2}
    assert "ends with an error" in refused(tmp_path, num_hidden_layers=4, layer_types=types, **without)
    assert "each token sees those after it" in refused(tmp_path, use_bidirectional_attention="all")
    assert "gemma4_text" in refused(tmp_path, model_type="gemma4", text_config={})


@pytest.mark.contract
def test_blocks_share_the_keys_of_the_last_one_of_their_kind() -> None:
    shape = job({**SMALL, "key_value_sharing_layers": 2}).model
    assert [sharing_of(shape, i) for i in range(6)] == ["own", "own", "stores", "stores", "reuses", "reuses"]
    assert build_job(job_to_dict(job({**SMALL, "key_value_sharing_layers": 2}))).model == shape


@pytest.mark.contract
def test_heads_that_are_too_large_for_flash_are_told() -> None:
    large = job({**SMALL, "full_head_size": 512}, attention="sdpa")
    assert large.attention == "flash"
    told = [one.why for one in large.assumptions if one.key == "attention"]
    assert any("in 3 of 6 blocks: heads of 512 elements" in why for why in told)
    assert any("efficient in 3 of 6 blocks: 64 tokens reach the sliding window" in why for why in told)


@pytest.mark.closed_form
def test_a_cache_grows_in_the_blocks_that_have_keys_of_their_own() -> None:
    """Of six blocks the two kinds have two each that store: with a window 31 tokens, without one all of them."""
    pinned = job(
        {**SMALL, "key_value_sharing_layers": 2},
        micro_batch_size=1,
        activation_checkpointing="none",
        precision="fp32",
        attention="eager",
    )
    setup = setup_of(pinned, "none", False)
    record = replay(setup, batch=1)
    short, long = (generation_bytes(setup, record, 1, length) for length in (512, 1024))
    assert long - short == 5 * 4 * 32 * 512  # keys and values of two blocks without a window, and the old ones of one
