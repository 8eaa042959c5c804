"""Blocks of Qwen3-Next and Qwen3.5 under Megatron-LM, and keys and values of fewer heads than devices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run
from tests.engines.megatron.test_hybrid import record_of
from vramplan.engines.megatron.delta_blocks import DeltaModel

LINEAR = {"key_heads": 2, "value_heads": 4, "key_size": 16, "value_size": 16, "kernel": 4, "layers": [0, 1, 2]}
DELTA: dict[str, Any] = {
    "name": "small",
    "transformers_model_type": "qwen3_5_text",
    "family": "qwen3_next",
    "layers": 4,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 2,
    "head_size": 16,
    "intermediate_size": 128,
    "vocabulary_size": 1024,
    "max_positions": 256,
    "tied_embeddings": False,
    "partial_rotary_factor": 0.25,
    "linear_attention": LINEAR,
}
NET = 64 * (2 * 32 + 64 + 64 + 2 * 4) + (2 * 32 + 64) * 4 + 2 * 4 + 16 + 64 * 64
GATED = 64 * (2 * 64 + 2 * 32) + 64 * 64 + 2 * 16  # queries with a gate, keys, values, the projection, norms of heads
MLP = 3 * 64 * 128
ENDS = 2 * 1024 * 64


@pytest.mark.closed_form
def test_a_model_has_the_weights_of_its_blocks() -> None:
    expected = 3 * NET + GATED + 4 * (MLP + 2 * 64) + ENDS + 64
    assert record_of(model=DELTA).parameters == expected


@pytest.mark.closed_form
def test_devices_divide_the_heads_of_a_delta_net() -> None:
    parallel = {"tensor": 2, "sequence_parallel": True}
    whole = 3 * 16 + 2 * 16 + 9 * 64  # norms
    expected = (3 * NET + GATED + 4 * MLP + ENDS - 3 * 16 - 2 * 16) // 2 + whole
    assert record_of(model=DELTA, parallel=parallel).parameters == expected


@pytest.mark.closed_form
def test_a_shared_expert_has_a_gate() -> None:
    experts = {"count": 8, "active": 2, "intermediate_size": 32, "shared_intermediate_size": 48}
    mixed = {**DELTA, "intermediate_size": 32, "transformers_model_type": "qwen3_5_moe_text", "experts": experts}
    each = 8 * 64 + 8 * 3 * 64 * 32 + 3 * 64 * 48 + 64
    assert record_of(model=mixed).parameters == 3 * NET + GATED + 4 * (each + 2 * 64) + ENDS + 64


@pytest.mark.parametrize("strategy", ["none", "full", "selective"])
def test_every_strategy_of_delta_nets_ends_with_as_many_deaths_as_births(strategy: str) -> None:
    record = record_of(model=DELTA, activation_checkpointing=strategy)
    assert record.peak_bytes(2) > record.static_bytes(2)
    assert record.end_bytes(2) >= 0


@pytest.mark.closed_form
def test_a_delta_net_keeps_what_its_kernels_save() -> None:
    """Its input, the projections that the convolution read, normed queries and keys, and these for every head of
    values; values, gate, what came out, its norm, its product with the gate, and each token against its chunk."""
    linear = {**LINEAR, "layers": [0, 1, 2, 3]}
    more = {**DELTA, "layers": 5, "linear_attention": linear}
    few = record_of(model={**DELTA, "linear_attention": {**LINEAR, "layers": [0, 1, 2]}}).saved_bytes(2)
    added = record_of(model=more).saved_bytes(2) - few
    tokens = 2 * 64
    halves = 64 + (2 * 32 + 64 + 64 + 2 * 4) + 2 * 32 + 2 * 64 + 5 * 64 + 64 * 4 + 4
    of_mlp = 64 + 64 + 64 + 3 * 128
    factors = 4 * (4 + 4 + 4 + 2) + 4 * 2  # sums of gates, what they are made of, and the factors of norms
    assert added == pytest.approx(tokens * (2 * (halves + of_mlp) + factors), rel=0.06)


@pytest.mark.closed_form
@pytest.mark.parametrize(("model", "count"), [("qwen3.5-0.8b", 752393024)])
def test_published_ones_have_as_many_weights(model: str, count: int) -> None:
    words = ("-m", model, "-g", "h100", "--runtime", "megatron", "--seq", "512", "--micro-batch", "1")
    printed = run("fit", *words, "--print", "parameters.total").out.strip().replace(",", "")
    assert int(printed) == pytest.approx(count, rel=0.001)


def test_nobody_traced_delta_nets() -> None:
    assert DeltaModel.untraced


OF_DELTA = ("linear_attention", "partial_rotary_factor", "transformers_model_type")
LLAMA: dict[str, Any] = {
    **{key: value for key, value in DELTA.items() if key not in OF_DELTA},
    "family": "llama",
    "attention_heads": 8,
    "head_size": 8,
}


@pytest.mark.closed_form
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_keys_and_values_of_fewer_heads_than_devices_are_gathered(devices: int) -> None:
    """The projection is divided as ever, and what is kept beside the heads of a device are one key and one value."""
    parallel = {"tensor": devices}
    record = record_of(model=LLAMA, parallel=parallel)
    projections = 64 * (64 + 2 * 16) + 64 * 64 + MLP
    assert record.parameters == (4 * projections + ENDS) // devices + 9 * 64


def test_more_devices_than_heads_of_keys_are_told() -> None:
    words = ("-m", "qwen2.5-3b", "-g", "h100", "--runtime", "megatron", "--seq", "512", "--micro-batch", "1")
    ran = run("fit", *words, "--tensor", "4", "--details")
    assert "never traced with fewer key and value heads" in ran.out


@pytest.mark.closed_form
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("positions", ["learned", "none", "rope"])
def test_any_gpt_has_the_weights_of_its_gates_positions_and_experts(gated: bool, positions: str) -> None:
    """Norms with biases but beside a gate and rotary positions, a table of learned ones, and no other biases here."""
    keys = ("layers", "hidden_size", "attention_heads", "vocabulary_size", "max_positions", "tied_embeddings", "name")
    experts = {"count": 8, "active": 1, "intermediate_size": 128, "dense_layers": [0, 2], "shared": 0}
    model = {key: DELTA[key] for key in keys} | {"family": "megatron_gpt", "gated_mlp": gated, "positions": positions}
    model |= {"qkv_bias": False, "intermediate_size": 128, "experts": experts}
    matrices = 64 * 128 * (3 if gated else 2)
    norms = 9 * 64 * (1 if gated and positions == "rope" else 2)
    blocks = 4 * 4 * 64 * 64 + 2 * matrices + 2 * (8 * matrices + 8 * 64)
    assert record_of(model=model).parameters == blocks + norms + ENDS + 256 * 64 * (positions == "learned")
