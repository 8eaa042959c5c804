"""fms-fsdp's Llama, compiled block by block under FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.values.job import ResolvedJob

PINNED = {"sequence_length": 4096, "micro_batch_size": 2, "gradient_accumulation_steps": 1}
HYBRID = {"data": 128, "sharding": "hsdp:8"}


def job(**more: Any) -> ResolvedJob:
    raw = {"model": "llama-2-7b", "gpu": "a100", "runtime": "fms-fsdp", "activation_checkpointing": "none", **PINNED}
    found = build_job({**raw, **more})
    assert isinstance(found, ResolvedJob)
    return found


def test_groups_of_replicas_take_the_defaults_of_fsdp() -> None:
    one = job(parallel=HYBRID, compile=True)
    assert one.sharding is not None
    assert (one.sharding.version, one.sharding.no_sync, one.sharding.shards) == (1, False, 8)
    assert one.precision == "fsdp-bf16"


def test_compiled_blocks_keep_less_than_eager_ones() -> None:
    eager, compiled = (decide(job(parallel=HYBRID, compile=on)).record for on in (False, True))
    assert compiled.parameters == eager.parameters == 6738415616
    assert compiled.saved_bytes(2) < eager.saved_bytes(2)


@pytest.mark.closed_form
def test_a_compiled_block_keeps_what_its_products_and_its_attention_read() -> None:
    """In 16 bits of each token: its input, both norms, query, key, value, attention and what goes out of it.

    Of the inner width there are both products and what the last one reads. That one is only added, in the result. Each
    norm keeps 4 bytes a token, the logsumexp 4 bytes a head; the state of random numbers has two blocks.
    """
    two, three = (decide(job(model=_llama(n), parallel={"data": 8}, compile=True)).record for n in (2, 3))
    tokens, hidden, inner, heads = 2 * 4096, 1024, 2816, 16
    kept = three.saved_bytes(2) - two.saved_bytes(2)
    assert kept == tokens * (2 * (8 * hidden + 3 * inner) + 4 * (heads + 2)) + 2 * 512


def _llama(layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "attention_heads": 16, "vocabulary_size": 32000}
    return {"name": "small", "family": "llama", "layers": layers, "max_positions": 4096, **sizes}


@pytest.mark.parametrize("parallel", [None, {"data": 8, "sharding": "ddp"}])
def test_without_fsdp_it_is_not_compiled(parallel: dict[str, Any] | None) -> None:
    with pytest.raises(InputError, match="under FSDP"):
        job(parallel=parallel, compile=True)
