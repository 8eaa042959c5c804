"""modded-nanogpt: which record a job is of, what its script decides, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vramplan.catalog import models
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.decision import decide
from vramplan.planner.setups import setup_of
from vramplan.values.job import ResolvedJob

RECORD = "modded-nanogpt-2024-12-17"
EARLIER = "modded-nanogpt-2024-12-10"
RAW: dict[str, Any] = {"model": RECORD, "gpu": "h100", "runtime": "modded-nanogpt", "parallel": {"data": 8}}
UNET = {"value_embeddings": 2, "mirrored": True, "embedding_rows": 500, "fp32_rotary": False}
SMALL = {
    "family": "modded_nanogpt",
    "layers": 4,
    "hidden_size": 64,
    "attention_heads": 2,
    "vocabulary_size": 512,
    "max_positions": 512,
    "unet": UNET,
}


def job(**keys: Any) -> ResolvedJob:
    built = build_job({**RAW, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def refused(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        build_job({**RAW, **keys})
    return "; ".join(f"{one.key}: {one.message} ({one.hint})" for one in caught.value.problems)


def test_the_script_decides_what_the_job_leaves_open() -> None:
    one = job()
    assert (one.sequence_length, one.micro_batch_size, one.global_batch_size) == (65536, 1, 8)
    assert (one.precision, one.optimizer, one.compile, one.attention) == ("pure-bf16", "muon", True, "flash")
    assert one.sharding is not None
    assert one.sharding.bucket_views
    told = {assumption.key for assumption in one.assumptions}
    assert {"sequence_length", "micro_batch_size", "global_batch_size", "precision", "weight_dtype", "compile"} <= told
    assert job(gradient_accumulation_steps=2).gradient_accumulation_steps == 2


def test_the_resolved_job_fed_back_is_the_same() -> None:
    one = job(model={"name": "small", **SMALL}, sequence_length=256)
    again = build_job(json.loads(json.dumps(job_to_dict(one))))
    assert job_to_dict(again) == job_to_dict(one)
    assert isinstance(again, ResolvedJob)
    assert again.model == one.model


@pytest.mark.parametrize("name", ["mine", RECORD, "modded-nanogpt (2024-12-17)"])
def test_the_name_of_a_described_model_stands_for_no_record(name: str) -> None:
    """The sizes of a Llama do not say which tables and skips a record has, whatever the model is called."""
    sizes = {"family": "llama", "layers": 12, "vocabulary_size": 50304, "qk_norm": True, "activation": "relu2"}
    message = refused(model={"name": name, **sizes}, weight_dtype="fp32")
    assert "model: each record of modded-nanogpt has an architecture of its own, which llama is not" in message
    assert f"(model: {RECORD} or {EARLIER}, or family: modded_nanogpt with the keys of unet)" in message


@pytest.mark.closed_form
@pytest.mark.parametrize(("name", "tables", "rows", "attentions"), [(RECORD, 3, 50257, 11), (EARLIER, 6, 50304, 12)])
def test_the_parameters_are_those_of_the_script(name: str, tables: int, rows: int, attentions: int) -> None:
    """Tables and head; of each block 8 and 4 squares of the width, and two scalars for each; a scalar for each skip."""
    width, layers = 768, 12
    blocks = layers * (8 * width**2 + 2) + attentions * (4 * width**2 + 2)
    count = (1 + tables) * rows * width + 50304 * width + blocks + layers // 2
    assert decide(job(model=name)).record.parameters == count
    assert models.find_model(name)[0].declared_parameters == count


@pytest.mark.closed_form
def test_the_states_are_those_of_the_first_device() -> None:
    """Of 44 square and 24 wide matrices it orthogonalizes 6 and 3; a buffer of each size for each of 8 devices."""
    square, wide = 768**2, 4 * 768**2
    muon = 4 * (6 * square + 3 * wide) + 8 * 2 * (square + wide)
    tables, head, scalars = 4 * 50257 * 768, 50304 * 768, 12 + 11 + 1
    adam = 2 * (2 * tables + 4 * head) + 512 * (4 + 1 + 3 * scalars)  # step counts, and two moments of scalars
    record = decide(job()).record
    states = sum(state.at(1) for state in record.states if state.category == "optimizer")
    assert states == muon + adam


def test_every_device_more_takes_a_turn_less() -> None:
    two, eight = (setup_of(job(parallel={"data": n}), "none", False).optimizer for n in (2, 8))
    assert (two, eight) == ("modded-muon:2", "modded-muon:8")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"runtime": "transformers"},
            "model: only modded-nanogpt has this model: transformers is not modelled with it",
        ),
        ({"model": "gpt2"}, "model: gpt2 is not modelled as modded-nanogpt computes it"),
        (
            {"model": {"name": "mine", "family": "llama"}},
            "model: each record of modded-nanogpt has an architecture of its own, which llama is not (model: modded-",
        ),
        ({"model": {"family": "modded_nanogpt"}}, "unet.value_embeddings: required key is missing"),
        ({"model": {**SMALL, "unet": {**UNET, "value_embeddings": 3}}}, "3 tables for each end of 4 blocks"),
        ({"model": {**SMALL, "unet": {**UNET, "embedding_rows": 513}}}, "513 rows for 512 words"),
        ({"model": {**SMALL, "unet": {**UNET, "attention_free": [4]}}}, "there is no block 4"),
        ({"model": {**SMALL, "unet": {**UNET, "attention_free": [3]}}}, "a block with a value embedding has attention"),
        ({"model": {**SMALL, "activation": "relu"}}, "relu is not modelled (a modded_nanogpt model has relu2)"),
        ({"parallel": {"data": 1}}, "whose buckets are modelled for several devices (parallel: {data: 8}"),
        ({"parallel": {"data": 8, "sharding": "fsdp"}}, "fsdp is not in modded-nanogpt"),
        ({"micro_batch_size": 2}, "micro_batch_size: 2 is not in modded-nanogpt, whose attention takes 1 (use 1)"),
        ({"sequence_length": 1000}, "1000 is no multiple of 128, a block of its mask"),
        ({"sequence_length": 131072}, "131072 is more than the 65536 positions of its rotary buffers"),
        ({"activation_checkpointing": "full"}, "full is not in modded-nanogpt: it checkpoints nothing"),
        ({"optimizer": "adamw"}, "adamw is not in modded-nanogpt"),
        ({"optimizer_implementation": "foreach"}, "foreach is not in modded-nanogpt, whose Adam is fused"),
        ({"precision": "amp-bf16"}, "amp-bf16 is not in modded-nanogpt: model.bfloat16()"),
        ({"weight_dtype": "bf16"}, "weight_dtype: bf16 is not in modded-nanogpt, which has fp32"),
        ({"gradient_dtype": "fp32"}, "which has the element types of each weight"),
        ({"attention": "efficient"}, "efficient is not in modded-nanogpt: it calls FlexAttention"),
        ({"dropout": 0.1}, "means nothing to modded-nanogpt, which has none"),
        ({"max_gradient_norm": 1.0}, "max_gradient_norm: 1 is not in modded-nanogpt"),
        ({"hold_outputs": True}, "hold_outputs: true is not in modded-nanogpt"),
        ({"offload": ["activations"]}, "not"),
        ({"parallel": {"data": 4, "tensor": 2}}, "parallel.tensor: 2 is not modelled"),
        ({"compile": False, "adapter": {"kind": "lora"}}, "lora"),
    ],
)
def test_refusals_name_the_key_the_value_and_the_way_out(keys: dict[str, Any], message: str) -> None:
    assert message in refused(**keys)


def test_parts_that_are_frozen_are_refused() -> None:
    assert "frozen" in refused(compile=False, frozen=["embeddings"])
