"""torchtitan's Qwen3: its Llama with norms of the heads, and with heads of any size."""

from __future__ import annotations

import pytest

from tests.engines.torchtitan.test_titan import LLAMA, job_of, setup_of
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

QWEN3 = LLAMA | {"family": "qwen3", "head_size": 64}  # eight heads of 64 over 256 hidden numbers


def test_it_is_the_programs_own_code_and_says_that_nobody_traced_it() -> None:
    job = job_of(model=QWEN3)
    assert job.model.engine == "torchtitan"
    assert job.composed == ("model.qk_norm was never traced with llama under torchtitan",)
    assert job_of().composed == ()


def test_a_tied_table_is_not_in_that_code() -> None:
    assert job_of(model=QWEN3 | {"tied_embeddings": True}).model.engine is None


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_each_device_has_its_part_of_products_and_both_norms_of_every_block(tensor: int) -> None:
    setup = setup_of(job_of(model=QWEN3, parallel={"data": 2, "tensor": tensor, "sharding": "fsdp"}))
    record = replay(setup)
    hidden, inner, layers, heads, key_heads, size, words = 256, 768, 5, 8, 4, 64, 1024
    products = layers * (hidden * size * (2 * heads + 2 * key_heads) + 3 * hidden * inner) + 2 * words * hidden
    norms = layers * (2 * hidden + 2 * size) + hidden
    weights = sum(state.at(2) for state in record.states if state.category == "weights")
    whole = 4 * (products // tensor + norms) // 2
    assert whole <= weights <= whole + 512 * (layers * 11 + 3)  # each tensor in blocks of the allocator


def test_queries_and_keys_are_normalised_and_turned_by_halves() -> None:
    own, plain = (
        replay(setup_of(job_of(model=model, activation_checkpointing="none"))).operators for model in (QWEN3, LLAMA)
    )
    assert set(own) - set(plain) == {"cat", "slice_backward"}  # rotate_half, and its backward
    assert own.count("_fused_rms_norm") == 2 * plain.count("_fused_rms_norm") - 2  # all but the last one of the model


def test_a_split_vocabulary_keeps_no_whole_logits() -> None:
    """With 64 times the words the logits are the largest: of four devices each has half as many as of two."""
    wide = QWEN3 | {"vocabulary_size": 65_536}
    largest = []
    for tensor in (2, 4):
        parallel = {"data": 2, "tensor": tensor, "sharding": "fsdp"}
        largest.append(replay(setup_of(job_of(model=wide, parallel=parallel))).largest_bytes(64))
    assert largest == [64 * 128 * 65_536 * 4 // tensor for tensor in (2, 4)]
