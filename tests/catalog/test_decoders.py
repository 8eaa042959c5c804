"""What configurations of the decoders that differ little from Llama say in a way of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.catalog.hf_config import read_hf_config
from vramplan.catalog.models import find_model
from vramplan.catalog.shapes import shape_from_fields
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.replay.models import scales_logits
from vramplan.values.model import ModelShape

pytestmark = pytest.mark.contract


def of_config(folder: Path, model_type: str, **keys: Any) -> ModelShape:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type, **keys}))
    return read_hf_config(folder)[0]


def refused(folder: Path, model_type: str, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        of_config(folder, model_type, **keys)
    return str(caught.value)


def test_one_switch_is_of_all_biases_of_attention(tmp_path: Path) -> None:
    for name in (
        "granite",
        "arcee",
        "apertus",
        "olmo",
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
        "cohere",
        "cohere2",
        "nemotron",
    ):
        shape = of_config(tmp_path, name, attention_bias=True)
        assert (shape.qkv_bias, shape.output_bias, shape.mlp_bias) == (True, True, False), name
    both = of_config(tmp_path, "ernie4_5", use_bias=True)
    assert (both.qkv_bias, both.output_bias, both.mlp_bias) == (True, True, True)
    seed = of_config(tmp_path, "seed_oss", attention_out_bias=True, residual_dropout=0.0)
    assert (seed.qkv_bias, seed.output_bias, seed.hidden_dropout) == (True, True, 0.0)
    assert not of_config(tmp_path, "helium", attention_bias=True).output_bias


def test_what_is_clipped_is_told_from_what_is_not(tmp_path: Path) -> None:
    assert of_config(tmp_path, "olmo", clip_qkv=8.0).clipped_qkv
    assert not of_config(tmp_path, "olmo", clip_qkv=None).clipped_qkv
    assert not of_config(tmp_path, "olmo").clipped_qkv


def test_rotary_positions_with_an_alpha_are_plain_ones(tmp_path: Path) -> None:
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    assert of_config(tmp_path, "hunyuan_v1_dense", rope_scaling=scaling).rope_scaling is None
    del scaling["alpha"]
    assert "dynamic without alpha is not modelled" in refused(tmp_path, "hunyuan_v1_dense", rope_scaling=scaling)
    assert of_config(tmp_path, "granite", rope_scaling=scaling).rope_scaling == "dynamic"


def test_blocks_without_a_window_have_no_positions(tmp_path: Path) -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    for name in ("cohere2", "exaone4"):
        shape = of_config(tmp_path, name, num_hidden_layers=4, layer_types=kinds)
        assert (shape.sliding_window_pattern, shape.unrotated_layers) == (2, (1, 3)), name
    assert of_config(tmp_path, "cohere2", num_hidden_layers=8).unrotated_layers == (3, 7)
    assert of_config(tmp_path, "cohere", num_hidden_layers=8).unrotated_layers == ()
    assert "null is not modelled" in refused(tmp_path, "cohere2", sliding_window=None)


def test_a_pattern_may_be_in_letters(tmp_path: Path) -> None:
    def unrotated(**keys: Any) -> tuple[int, ...]:
        return of_config(tmp_path, "exaone4", num_hidden_layers=6, **keys).unrotated_layers

    assert unrotated(sliding_window_pattern="LLG") == unrotated(sliding_window_pattern=3) == (2, 5)
    assert unrotated(sliding_window=None, sliding_window_pattern=None) == ()
    assert "with one G at the end" in refused(tmp_path, "exaone4", sliding_window_pattern="LGLG")
    assert find_model("exaone-4.0-1.2b")[0].unrotated_layers == ()
    assert len(find_model("exaone-4.0-32b")[0].unrotated_layers) == 16


def test_what_is_not_modelled_is_refused(tmp_path: Path) -> None:
    assert "only xielu is modelled" in refused(tmp_path, "apertus", hidden_act="silu")
    assert of_config(tmp_path, "apertus", hidden_act="xielu").activation == "xielu"


def test_these_heads_scale_their_logits() -> None:
    assert [name for name in ("llama", "granite", "cohere", "exaone4") if scales_logits(name)] == ["granite", "cohere"]


def test_kinds_of_blocks_of_glm_4_7_flash_are_read_one_by_one(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 3, "n_routed_experts": 8}
    for types, dense in ((["sparse", "dense", "sparse"], (1,)), (None, (0,))):
        experts = of_config(tmp_path, "glm4_moe_lite", **sizes, mlp_layer_types=types).experts
        assert experts is not None
        assert experts.dense_layers == dense
    said = refused(tmp_path, "glm4_moe_lite", **sizes, mlp_layer_types=["sparse"])
    assert "expected dense or sparse for each of 3 blocks" in said


def test_released_files_say_otherwise_how_much_of_a_head_turns(tmp_path: Path) -> None:
    assert of_config(tmp_path, "minimax_m2", rotary_dim=64).partial_rotary_factor == 0.5
    assert (
        of_config(tmp_path, "minimax_m2", rope_parameters={"partial_rotary_factor": 0.25}).partial_rotary_factor == 0.25
    )
    assert of_config(tmp_path, "gptj", n_embd=64, n_head=4, rotary_dim=8).partial_rotary_factor == 0.5
    assert "null is not modelled" in refused(tmp_path, "gptj", rotary_dim=None)
    assert "expected an even number up to 16" in refused(tmp_path, "gptj", n_embd=64, n_head=4, rotary_dim=32)


def test_trinity_has_windows_and_no_positions_without_them(tmp_path: Path) -> None:
    shape = of_config(tmp_path, "afmoe", num_hidden_layers=6, global_attn_every_n_layers=3, mup_enabled=True)
    assert (shape.sliding_window_pattern, shape.unrotated_layers, shape.scaled_embeddings) == (3, (2, 5), True)
    assert "null is not modelled" in refused(tmp_path, "afmoe", sliding_window=None)


def test_starcoder_has_one_head_of_keys_or_all(tmp_path: Path) -> None:
    assert of_config(tmp_path, "gpt_bigcode", n_head=12).key_value_heads == 1
    assert of_config(tmp_path, "gpt_bigcode", n_head=12, multi_query=False).key_value_heads == 12
    with pytest.raises(InputError, match="has 1 head of keys and values, or all 12, not 4"):
        shape_from_fields({"family": "gpt_bigcode", "key_value_heads": 4})


def test_turns_of_jamba_are_periods_and_offsets(tmp_path: Path) -> None:
    turns = {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0}
    shape = of_config(tmp_path, "jamba", num_hidden_layers=6, hidden_size=64, num_key_value_heads=4, **turns)
    assert shape.state_space is not None
    assert shape.experts is not None
    assert (shape.state_space.layers, shape.experts.dense_layers) == ((0, 2, 3, 5), (1, 3, 5))
    assert (shape.state_space.heads, shape.state_space.step_rank, shape.state_space.channels) == (128, 4, 128)
    assert "expected less than the 2 of attn_layer_period" in refused(tmp_path, "jamba", attn_layer_period=2)
    apart = {"family": "jamba", "layers": 4, "state_space": {"layers": [0, 3]}}
    with pytest.raises(InputError, match="do not come at equal distances"):
        build_job({"model": apart, "gpu": "v100"})


def test_mamba_has_a_state_space_in_each_block_and_no_attention(tmp_path: Path) -> None:
    shape = of_config(tmp_path, "mamba", num_hidden_layers=2, hidden_size=64, expand=3, time_step_rank=5)
    assert shape.state_space is not None
    assert (shape.attention_heads, shape.state_space.layers) == (0, (0, 1))
    assert (shape.state_space.values, shape.state_space.step_rank) == (192, 5)
    # the class computes a width of what it expands by, and then takes the one that it is given
    both = of_config(tmp_path, "falcon_mamba", hidden_size=64, expand=16, intermediate_size=128, time_step_rank=5)
    assert both.state_space is not None
    assert both.state_space.values == 128
    assert "false is not modelled" in refused(tmp_path, "falcon_mamba", residual_in_fp32=False)
    assert "the scan of mamba.py is not modelled" in refused(tmp_path, "mamba", use_mambapy=True)


def test_sparse_blocks_of_gemma_3n_are_the_first_ones(tmp_path: Path) -> None:
    blocks = {"num_hidden_layers": 5, "num_kv_shared_layers": 0, "intermediate_size": [96] * 5}
    shape = of_config(tmp_path, "gemma3n_text", **blocks, activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.0, 0.0])
    assert shape.alternating is not None
    assert (shape.alternating.sparse_layers, shape.alternating.states, shape.intermediate_size) == (2, 4, 96)
    said = refused(tmp_path, "gemma3n_text", **blocks, activation_sparsity_pattern=[0.0, 0.95, 0.0, 0.0, 0.0])
    assert "only the first blocks as sparse ones are modelled" in said
    assert "of different widths" in refused(tmp_path, "gemma3n_text", intermediate_size=[96, 128])
    assert "only 0 is modelled" in refused(tmp_path, "gemma3n_text", altup_active_idx=1)


def test_both_switches_of_internlm3_have_the_names_of_its_file(tmp_path: Path) -> None:
    both = of_config(tmp_path, "internlm3", qkv_bias=True, bias=True)
    assert (both.qkv_bias, both.output_bias, both.mlp_bias) == (True, True, True)
    neither = of_config(tmp_path, "internlm3", qkv_bias=False, bias=False)
    assert (neither.qkv_bias, neither.output_bias, neither.mlp_bias) == (False, False, False)
    assert "not the same as bias" in refused(tmp_path, "internlm3", qkv_bias=True, bias=False)


def test_blocks_of_ernie_have_experts_from_one_to_another(tmp_path: Path) -> None:
    def dense(**keys: Any) -> tuple[int, ...]:
        experts = of_config(tmp_path, "ernie4_5_moe", num_hidden_layers=6, **keys).experts
        assert experts is not None
        return experts.dense_layers

    assert dense() == (0,)
    assert dense(moe_layer_start_index=3) == (0, 1, 2)
    assert dense(moe_layer_start_index=0, moe_layer_end_index=3) == (4, 5)
    assert dense(moe_layer_end_index=-1, moe_layer_interval=2) == (0, 2, 4)
    shared = of_config(tmp_path, "ernie4_5_moe", moe_num_shared_experts=0).experts
    assert shared is not None
    assert (shared.shared, shared.shared_intermediate_size) == (0, None)
    assert "true is not modelled" in refused(tmp_path, "ernie4_5_moe", use_bias=True)


def test_numbers_of_hunyuan_are_one_or_one_for_each_block(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 2, "num_experts": 8}
    for topk in (4, [4, 4]):
        experts = of_config(tmp_path, "hunyuan_v1_moe", moe_topk=topk, **sizes).experts
        assert experts is not None
        assert (experts.routed, experts.active, experts.shared) == (8, 4, 1)
    assert "different numbers" in refused(tmp_path, "hunyuan_v1_moe", moe_topk=[4, 2], **sizes)
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    assert of_config(tmp_path, "hunyuan_v1_moe", moe_topk=4, rope_scaling=scaling, **sizes).rope_scaling is None
