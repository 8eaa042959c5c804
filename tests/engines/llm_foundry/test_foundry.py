"""llm-foundry's own MPT: what a job of it gets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import describe
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.decision import decide
from vramplan.values.job import ResolvedJob

MODEL = {
    "name": "MPT-125m",
    "family": "mpt",
    "positions": "learned",
    "layers": 12,
    "hidden_size": 768,
    "attention_heads": 12,
    "vocabulary_size": 50368,
    "max_positions": 2048,
    "parameters": 125311488,  # as the benchmarks of llm-foundry print it
}
PINNED = {"sequence_length": 2048, "micro_batch_size": 4, "gradient_accumulation_steps": 1}


def job(**more: Any) -> ResolvedJob:
    raw = {"model": MODEL, "gpu": "a100", "runtime": "llm-foundry", "activation_checkpointing": "none", **PINNED}
    found = build_job({**raw, **more})
    assert isinstance(found, ResolvedJob)
    return found


def test_its_parameters_are_those_that_its_authors_count() -> None:
    assert decide(job()).record.parameters == MODEL["parameters"]


def test_it_is_sharded_by_the_first_fsdp() -> None:
    sharding = job(parallel={"data": 8}).sharding
    assert sharding is not None
    assert (sharding.kind, sharding.version, sharding.no_sync) == ("fsdp", 1, False)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("precision", "fp32", "no fp32 kernels"),
        ("precision", "mixed-bf16", "not modelled with llm-foundry's own MPT"),
        ("attention", "efficient", "calls flash-attn itself"),
        ("adapter", {"kind": "lora", "rank": 8}, "an adapter is not modelled"),
        ("frozen", ["embeddings"], "a frozen part is not modelled"),
        ("loss", "fp32-logits", "not modelled with llm-foundry's own MPT"),
        ("parallel", {"data": 8, "fsdp_version": 2}, "Composer"),
        ("runtime", "transformers", "--runtime llm-foundry"),
        ("runtime", "pytorch", "--runtime llm-foundry"),
    ],
)
def test_what_it_has_not_is_refused(key: str, value: object, says: str) -> None:
    with pytest.raises(InputError) as caught:
        job(**{key: value})
    assert says in str(caught.value.problems)


def test_other_positions_are_refused() -> None:
    with pytest.raises(InputError, match="rope is not modelled"):
        job(model={**MODEL, "positions": "rope"})


@pytest.mark.closed_form
def test_attention_without_a_kernel_keeps_its_scores() -> None:
    """`attn_impl: torch`: softmax in fp32, its copy in 16 bits, the products before and after the mask."""
    flash, eager = (decide(job(attention=word)).record for word in ("flash", "eager"))
    scores = 12 * MODEL["attention_heads"] * PINNED["sequence_length"] ** 2  # of a sample, in all blocks
    batch = PINNED["micro_batch_size"]
    more = eager.saved_bytes(batch) - flash.saved_bytes(batch)
    assert more == pytest.approx(6 * scores * batch, rel=0.01)  # less the rows that flash-attn keeps
    assert flash.parameters == eager.parameters


def test_a_gathered_block_less_is_there_than_where_the_next_comes_first() -> None:
    """BACKWARD_POST: at the peak of deep blocks no second one is whole."""
    sharded = {"parallel": {"data": 8}, "model": {**MODEL, "vocabulary_size": 64, "parameters": None}}
    decision = decide(job(**sharded, activation_checkpointing="full"))
    components = {one.name: one.bytes for one in describe(decision).components}
    block, root = 12 * 768 * 768 + 13 * 768, (64 + 2048 + 2) * 768
    assert components["gathered"] == 2 * (block + root)


SHARDED = {"gpu": "h100", "parallel": {"data": 8}}


def test_fp8_keeps_the_inputs_of_layers_in_one_byte() -> None:
    """Closed form: 7 widths of each token less a byte each, a byte of each weight more, and what undoes its scales."""
    half, eighth = (decide(job(precision=name, **SHARDED)).record for name in ("fsdp-bf16", "fp8"))
    width, layers, tokens, block = 768, 12, 4 * 2048, 512
    inputs = 7 * width * tokens * layers
    weights = 12 * width * width * layers
    assert eighth.saved_bytes(4) == half.saved_bytes(4) - inputs + weights + 4 * layers * block
    assert eighth.parameters == half.parameters
    assert eighth.flops == half.flops
    assert eighth.end_bytes(4) == eighth.static_bytes(4)


def test_fp8_means_products_of_shards() -> None:
    one = job(precision="fp8", weight_dtype="fp32", gradient_dtype="fp32", **SHARDED)
    assert one.precision == "fsdp-fp8"
    again = build_job(job_to_dict(one))
    assert (again.precision, again.sharding) == (one.precision, one.sharding)
    assert describe(decide(again)).peak == describe(decide(one)).peak


@pytest.mark.parametrize(
    ("row", "most"),
    [
        ({"sequence_length": 32768, "micro_batch_size": 3, "activation_checkpointing": "full"}, 41),
        ({"sequence_length": 8192, "micro_batch_size": 3}, 63),
        ({"sequence_length": 512, "micro_batch_size": 40}, 54),
    ],
    ids=str,
)
def test_runs_in_fp8_that_were_published_fit(row: dict[str, Any], most: int) -> None:
    """Measured: mosaicml/llm-foundry, scripts/train/benchmarking/README.md, H100 80GB FP8, three rows of MPT-3b.

    Snapshot: what is allocated, in GiB, so that a rule that keeps more is seen.
    """
    model = {**MODEL, "layers": 32, "hidden_size": 2560, "attention_heads": 20, "intermediate_size": 10240}
    del model["parameters"]
    model["max_positions"] = row["sequence_length"]
    result = describe(decide(job(model=model, precision="fp8", allocator="simulate", **SHARDED, **row)))
    assert result.headroom_bytes >= 0
    assert result.peak.allocated_bytes < most << 30


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"gpu": "a100", "parallel": {"data": 8}}, "has no fp8"),
        ({"gpu": "h100"}, "modelled under FSDP"),
        ({"gpu": "h100", "parallel": {"data": 8, "sharding": "ddp"}}, "modelled under FSDP"),
        ({**SHARDED, "sequence_length": 100}, "no multiple of 8"),
        ({**SHARDED, "model": "llama-2-7b"}, "no code of llama is known that has products in fp8"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_where_there_is_no_fp8_it_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        job(**{"precision": "fp8", **keys})
