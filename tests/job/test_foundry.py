"""llm-foundry's own MPT: what a job of it gets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answer import decide, describe
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.spec import Job

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


def job(**more: Any) -> Job:
    raw = {"model": MODEL, "gpu": "a100", "runtime": "llm-foundry", "activation_checkpointing": "none", **PINNED}
    found = build_job({**raw, **more})
    assert isinstance(found, Job)
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
        ("attention", "eager", "llm-foundry calls flash-attn"),
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


def test_a_gathered_block_less_is_there_than_where_the_next_comes_first() -> None:
    """BACKWARD_POST: at the peak of deep blocks no second one is whole."""
    sharded = {"parallel": {"data": 8}, "model": {**MODEL, "vocabulary_size": 64, "parameters": None}}
    decision = decide(job(**sharded, activation_checkpointing="full"))
    components = {one.name: one.bytes for one in describe(decision).components}
    block, root = 12 * 768 * 768 + 13 * 768, (64 + 2048 + 2) * 768
    assert components["gathered"] == 2 * (block + root)
