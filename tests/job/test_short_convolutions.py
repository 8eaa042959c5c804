"""Models with short convolutions in a job: which blocks have them, how wide they are, and what a block keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.job.configured import job_of, refusal_of, shape_of
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.planner.setups import setup_of
from vramplan.replay.evaluation import generation_bytes
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

WIDTH, INNER, KERNEL = 64, 96, 3
SMALL: dict[str, Any] = {
    "family": "lfm2",
    "layers": 4,
    "hidden_size": WIDTH,
    "attention_heads": 4,
    "key_value_heads": 2,
    "intermediate_size": INNER,
    "vocabulary_size": 100,
    "short_convolution": {"kernel": KERNEL, "layers": [0, 1, 3]},
}
CONFIG = {"model_type": "lfm2", "num_hidden_layers": 3}
PINNED: dict[str, Any] = {
    "micro_batch_size": 2,
    "activation_checkpointing": "none",
    "precision": "fp32",
    "attention": "eager",
    "gradient_accumulation_steps": 1,
}


def job(model: Any = SMALL, **keys: Any) -> ResolvedJob:
    return job_of(model, **keys)


@pytest.mark.contract
def test_the_blocks_that_have_them_are_those_of_the_configuration(tmp_path: Path) -> None:
    def blocks(**keys: Any) -> tuple[int, ...]:
        found: tuple[int, ...] = shape_of(tmp_path, **CONFIG, **keys).short_convolution.layers
        return found

    assert blocks() == ()
    assert blocks(full_attn_idxs=[1]) == (0, 2)
    assert blocks(layer_types=["conv", "full_attention", "conv"]) == (0, 2)
    assert "swa is not modelled" in refusal_of(tmp_path, **CONFIG, layer_types=["swa"] * 3)
    assert "2 entries for 3 blocks" in refusal_of(tmp_path, **CONFIG, layer_types=["conv"] * 2)
    assert "expected a list of block numbers" in refusal_of(tmp_path, **CONFIG, full_attn_idxs=1)
    wrong = {**SMALL, "short_convolution": {"layers": [9]}}
    with pytest.raises(InputError, match="there is no block 9"):
        job(wrong)


@pytest.mark.contract
def test_the_feed_forward_layer_is_two_thirds_of_what_is_written(tmp_path: Path) -> None:
    def inner(**keys: Any) -> int:
        return shape_of(tmp_path, **CONFIG, **keys).intermediate_size

    assert inner() == 8192  # of 12288
    assert inner(intermediate_size=6656) == inner(block_ff_dim=6656) == 4608  # 4437, up to a multiple of 256
    assert inner(intermediate_size=6656, block_multiple_of=16) == 4448
    assert inner(intermediate_size=6656, block_ffn_dim_multiplier=1.5) == 6656  # 6655, up to a multiple
    assert inner(intermediate_size=6656, block_ffn_dim_multiplier=None) == 4437
    assert inner(intermediate_size=6656, block_auto_adjust_ff_dim=False) == 6656
    assert not shape_of(tmp_path, **CONFIG, tie_embedding=False).tied_embeddings


@pytest.mark.contract
def test_which_code_is_modelled_is_told_and_read_back() -> None:
    plain = job()
    told = {one.key: one.why for one in plain.assumptions}
    assert "causal-conv1d is not installed" in told["model.short_convolution"]
    assert any("not kept apart in the blocks with a convolution" in one for one in job(packing=True).warnings)
    assert build_job(job_to_dict(plain)).model == plain.model


@pytest.mark.closed_form
def test_a_convolution_keeps_the_tokens_that_it_sees_however_long_the_text_is() -> None:
    """Of four blocks one keeps keys and values: 4 bytes of fp32 for each of its 32 elements and each token, twice."""
    pinned = job(**PINNED)
    setup = setup_of(pinned, "none", False)
    record = replay(setup, batch=1)
    short, long = (generation_bytes(setup, record, 1, length) for length in (512, 1024))
    each = 4 * pinned.model.key_value_heads * pinned.model.head_size
    assert long - short == 3 * each * 512  # keys, values, and the old values of the block beside its new ones


@pytest.mark.closed_form
def test_what_a_block_with_a_convolution_keeps_for_backward() -> None:
    """What both gates and the convolution read, what it gave with the tokens that are cut off, and what the last
    projection reads; and what a block keeps of its norms and its feed-forward layer."""

    def saved(layers: int) -> int:
        model = {**SMALL, "layers": layers, "short_convolution": {"kernel": KERNEL, "layers": [*range(layers)]}}
        pinned = job(model, sequence_length=64, **PINNED)
        return replay(setup_of(pinned, "none", False), batch=2).saved_bytes(2)

    tokens = 2 * 64
    gates, inside = tokens * 3 * WIDTH * 4, tokens * WIDTH * 4
    convolved, read = 2 * WIDTH * (64 + KERNEL - 1) * 4, tokens * WIDTH * 4
    norms = 2 * (3 * tokens * WIDTH * 4 + tokens * 4)  # what comes in, divided, and times the weight; the divisors
    feedforward = (2 + 1 + 1) * tokens * INNER * 4  # both projections, the activation, the product
    assert saved(3) - saved(2) == gates + inside + convolved + read + norms + feedforward
