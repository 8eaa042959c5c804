"""Models with state spaces in a job: which blocks have them, which code is told, and what generating keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.job.configured import job_of, refusal_of, shape_of
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.setups import setup_of
from vramplan.replay.evaluation import generation_bytes
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob
from vramplan.values.model import StateSpace

SMALL = {
    "family": "granitemoehybrid",
    "layers": 4,
    "hidden_size": 64,
    "attention_heads": 4,
    "key_value_heads": 2,
    "intermediate_size": 96,
    "vocabulary_size": 100,
    "state_space": {"heads": 2, "head_size": 64, "state_size": 16, "chunk": 32, "layers": [0, 1, 3]},
}
NEMOTRON = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*EM"}
FALCON = {"model_type": "falcon_h1", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
PINNED: dict[str, Any] = {
    "micro_batch_size": 2,
    "activation_checkpointing": "none",
    "precision": "fp32",
    "attention": "eager",
    "gradient_accumulation_steps": 1,
}


def job(model: Any = SMALL, **keys: Any) -> ResolvedJob:
    return job_of(model, **keys)


def space(folder: Path, **keys: Any) -> StateSpace:
    found: StateSpace = shape_of(folder, **keys).state_space
    return found


@pytest.mark.contract
def test_the_blocks_that_have_them_are_those_of_the_configuration(tmp_path: Path) -> None:
    granite = {"model_type": "granitemoehybrid", "num_hidden_layers": 3}
    former = ["mamba", "attention", "mamba"]
    assert space(tmp_path, **granite).layers == (0, 1, 2)
    assert space(tmp_path, **granite, layer_types=former).layers == (0, 2)
    assert space(tmp_path, **granite, layers_block_type=former).layers == (0, 2)
    assert "swa is not modelled" in refusal_of(tmp_path, **granite, layer_types=["swa"] * 3)
    assert "2 entries for 3 blocks" in refusal_of(tmp_path, **granite, layer_types=former[:2])
    bamba = {"model_type": "bamba", "num_hidden_layers": 4}
    assert space(tmp_path, **bamba, attn_layer_indices=[1]).layers == (0, 2, 3)
    assert space(tmp_path, **{**FALCON, "num_hidden_layers": 2, "mamba_n_heads": 4, "mamba_d_ssm": 48}).layers == (0, 1)


@pytest.mark.contract
def test_a_pattern_says_what_each_block_of_nemotron_is(tmp_path: Path) -> None:
    shape = shape_of(tmp_path, **NEMOTRON)
    found = shape.state_space
    assert (shape.layers, found.layers, found.feedforward_layers) == (5, (0, 4), (1, 3))
    assert shape.experts.dense_layers == (0, 1, 2, 4)
    assert shape_of(tmp_path, **{**NEMOTRON, "hybrid_override_pattern": "M-*-"}).experts is None
    listed = ["mamba", "mlp", "attention", "moe", "mamba"]
    assert shape_of(tmp_path, model_type="nemotron_h", layers_block_type=listed)._replace(name=shape.name) == shape
    assert "X is none of M E * -" in refusal_of(tmp_path, **{**NEMOTRON, "hybrid_override_pattern": "MX"})


@pytest.mark.contract
def test_experts_of_granite_are_those_of_a_configuration_that_has_some(tmp_path: Path) -> None:
    granite = {"model_type": "granitemoehybrid", "num_hidden_layers": 1, "shared_intermediate_size": 48}
    dense = shape_of(tmp_path, **granite, num_local_experts=0, num_experts_per_tok=0, intermediate_size=512)
    assert (dense.experts, dense.intermediate_size) == (None, 48)
    experts = shape_of(tmp_path, **granite, num_experts_per_tok=3, intermediate_size=512).experts
    assert (experts.routed, experts.active, experts.intermediate_size) == (8, 3, 512)
    assert experts.shared_intermediate_size == 48


@pytest.mark.contract
def test_a_head_has_the_elements_that_the_configuration_says(tmp_path: Path) -> None:
    granite = {"model_type": "granitemoehybrid", "num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4}
    assert space(tmp_path, **granite, mamba_n_heads=4).head_size == 32
    assert space(tmp_path, **granite, mamba_n_heads=4, mamba_expand=3).head_size == 48
    assert "not the 128 of mamba_expand" in refusal_of(tmp_path, **granite, mamba_n_heads=4, mamba_d_head=16)
    assert space(tmp_path, **FALCON, mamba_n_heads=4, mamba_d_ssm=48).head_size == 12
    assert space(tmp_path, **FALCON, mamba_n_heads=4, mamba_d_ssm=None).head_size == 32
    assert "not the 48 of mamba_d_ssm" in refusal_of(
        tmp_path, **FALCON, mamba_n_heads=4, mamba_d_ssm=48, mamba_d_head=16
    )
    norms = [
        space(tmp_path, **FALCON, mamba_n_heads=4, mamba_d_ssm=48, **keys).norm
        for keys in ({}, {"mamba_rms_norm": True})
    ]
    assert norms == ["none", "norm-first"]


@pytest.mark.contract
def test_what_makes_no_network_is_refused() -> None:
    def wrong(**keys: Any) -> str:
        with pytest.raises(InputError) as caught:
            job({**SMALL, "state_space": {**SMALL["state_space"], **keys}})  # type: ignore[dict-item]
        return str(caught.value)

    assert "2 heads do not make 3 groups evenly" in wrong(groups=3)
    assert "there is no block 9" in wrong(layers=[9])
    assert "are no multiple of the hidden state" in wrong(head_size=48)
    nemotron = {"family": "nemotron_h", "layers": 2, "experts": {"count": 4, "active": 2}}
    with pytest.raises(InputError, match="may have no experts, so there is no default"):
        job(nemotron)


@pytest.mark.contract
def test_which_code_is_modelled_is_told_and_read_back() -> None:
    plain, fused = job(), job(mamba_kernels=True)
    told = {one.key: one.why for one in plain.assumptions}
    assert "mamba-ssm and causal-conv1d are not installed" in told["model.state_space"]
    assert any("composed from their source" in one for one in fused.warnings)
    assert any("a state goes on into the next sequence" in one for one in job(packing=True).warnings)
    assert any("changes nothing" in one for one in job("gpt2", mamba_kernels=True).warnings)
    again = build_job(job_to_dict(fused))
    assert (again.model, again.mamba_kernels) == (fused.model, True)


@pytest.mark.contract
def test_their_kernels_are_a_way_to_make_a_run_fit() -> None:
    run = {"gpu": "a100-40gb", "sequence_length": 4096, "precision": "pure-bf16", "activation_checkpointing": "none"}
    answer = vramplan.fit(model="granite-4.0-h-1b", micro_batch_size=1, **run)  # type: ignore[arg-type]
    assert answer.verdict != "fits"
    assert {"mamba_kernels": True} in [dict(one.change) for one in answer.remedies]


@pytest.mark.closed_form
def test_a_state_does_not_grow_with_the_text() -> None:
    """Of four blocks one keeps keys and values: 8 bytes of fp32 for each of its 32 elements and each token, twice."""
    pinned = job(**PINNED)
    setup = setup_of(pinned, "none", False)
    record = replay(setup, batch=1)
    short, long = (generation_bytes(setup, record, 1, length) for length in (512, 1024))
    each = 4 * pinned.model.key_value_heads * pinned.model.head_size
    assert long - short == 3 * each * 512  # keys, values, and the old values of the block beside its new ones


@pytest.mark.closed_form
def test_the_kernels_keep_two_tensors_of_a_block_in_the_place_of_its_chunks() -> None:
    """What a further block keeps: the projected states, what was scanned, and what a block without a state space keeps
    of its norms and its feed-forward layer."""

    def saved(layers: int, spaces: list[int]) -> int:
        model = {**SMALL, "layers": layers, "state_space": {**SMALL["state_space"], "layers": spaces}}  # type: ignore[dict-item]
        pinned = job(model, sequence_length=64, mamba_kernels=True, **PINNED)
        return replay(setup_of(pinned, "none", False), batch=2).saved_bytes(2)

    tokens, rounded = 2 * 64, 512
    projected, scanned, factors = tokens * (128 + 160 + 2) * 4, tokens * 128 * 4, tokens * 4
    decay = 2 * rounded  # of two heads, and its exponential
    norms = 2 * (3 * tokens * 64 * 4 + tokens * 4)  # what comes in, divided, and times the weight; the divisors
    feedforward = (2 + 1 + 1) * tokens * 96 * 4  # gate and up projection, the activation, the product
    assert saved(3, [0, 1, 2]) - saved(2, [0, 1]) == projected + scanned + factors + decay + norms + feedforward


MAMBA = {"family": "mamba", "layers": 3, "hidden_size": 64, "vocabulary_size": 100}


def peak(**keys: Any) -> int:
    one = job(MAMBA, **{"sequence_length": 4096, "micro_batch_size": 2, "precision": "pure-bf16", **keys})
    return replay(setup_of(one, "none", accumulates=False), batch=2).peak_bytes(2)


@pytest.mark.contract
def test_states_of_mamba_1_go_from_token_to_token() -> None:
    plain = job(MAMBA, attention="sdpa")
    assert plain.attention == "eager"
    assert next(one.value for one in plain.assumptions if one.key == "model.state_space") == "token by token"
    lora = {"adapter": {"kind": "lora", "targets": ["in_proj"]}, "quantization": "nf4"}
    with pytest.raises(InputError, match="multiplies by the weight of dt_proj itself"):
        job(MAMBA, **lora)


@pytest.mark.closed_form
def test_loop_keeps_a_state_for_each_token_and_the_kernel_one_for_every_2048() -> None:
    """Three tensors of 128 channels and 16 elements of the state in fp32, of two samples, in each of three blocks."""
    states = 3 * 3 * 4 * 2 * 4096 * 128 * 16
    assert states < peak() < 2 * states
    assert peak(mamba_kernels=True) < states / 9
