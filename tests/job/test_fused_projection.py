"""`qkv_proj` as a target of LoRA, for models that have three projections or one of another name."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict
from vramplan.planner.decision import decide
from vramplan.values.job import Adapter, ResolvedJob

PINNED = {"sequence_length": 256, "micro_batch_size": 1, "gradient_accumulation_steps": 1}


def job(model: str, targets: list[str], **more: Any) -> ResolvedJob:
    adapter = {"kind": "lora", "rank": 16, "targets": targets, **more.pop("adapter", {})}
    raw = {"model": model, "gpu": "a100", "adapter": adapter, "activation_checkpointing": "full", **PINNED, **more}
    found = build_job(raw)
    assert isinstance(found, ResolvedJob)
    return found


def test_one_pair_is_over_the_three_outputs() -> None:
    """Rank 16 of 32 blocks: inputs of 4096, and three outputs of 4096."""
    record = decide(job("llama-2-7b", ["qkv_proj"])).record
    assert record.trainable_parameters == 32 * 16 * (4096 + 3 * 4096)
    assert record.parameters - record.trainable_parameters == 6738415616


def test_grouped_heads_make_the_fused_output_smaller() -> None:
    record = decide(job("llama-3-8b", ["qkv_proj"])).record
    assert record.trainable_parameters == 32 * 16 * (4096 + 4096 + 2 * 1024)


def test_fed_back_it_is_the_same() -> None:
    one = job("llama-2-7b", ["qkv_proj", "o_proj"])
    assert build_job(job_to_dict(one)).model == one.model
    assert "model.code" in {told.key for told in one.assumptions}


def test_a_model_with_a_fused_projection_takes_the_word_for_its_own() -> None:
    found = job("pythia-1.4b", ["qkv_proj"]).adapter
    assert isinstance(found, Adapter)
    assert found.targets == ("query_key_value",)


@pytest.mark.parametrize(
    ("model", "targets", "more", "says"),
    [
        ("llama-2-7b", ["qkv_proj", "q_proj"], {}, "q_proj beside qkv_proj"),
        ("llama-2-7b", ["qkv_proj"], {"adapter": {"kind": "dora"}}, "dora is not modelled over qkv_proj"),
        ("gemma-2-2b", ["qkv_proj"], {}, "names no linear layer"),
        ("llama-2-7b", ["qkv_proj"], {"quantization": "gptq-int4", "precision": "mixed-fp16"}, "with mixed-fp16"),
    ],
)
def test_what_does_not_go_with_it_is_refused(model: str, targets: list[str], more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        job(model, targets, **more)
    assert says in str(caught.value.problems)


@pytest.mark.sweep
def test_deepspeed_steps_a_master_copy_beside_weights_of_4_bits() -> None:
    zero2 = {"runtime": "deepspeed", "precision": "mixed-fp16", "parallel": {"data": 1, "sharding": "zero2"}}
    one = decide(job("llama-2-7b", ["qkv_proj"], quantization="gptq-int4", **zero2))
    trained = one.record.trainable_parameters
    states = one.record.static_bytes(1)
    assert 6 * trained < states < 6738415616  # a master copy and moments of the adapter, none of the model's own
