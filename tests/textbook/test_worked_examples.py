"""CLOSED FORM. What docs/examples.md says of figures that texts quote, computed by the replay."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan import fit

pytestmark = pytest.mark.closed_form

BLOCKS, HEADS, HEAD_SIZE, LENGTH = 24, 16, 64, 4096  # pythia-410m
RANDOM_STATE_BYTES = 2 * 512  # of the fused kernel, in each block


def saved_bytes(**keys: Any) -> int:
    result = fit(
        model="pythia-410m",
        gpu="a100-80gb",
        sequence_length=LENGTH,
        precision="fp32",
        micro_batch_size=1,
        activation_checkpointing="none",
        **keys,
    )
    saved = result.peak.saved_bytes
    assert saved is not None
    return saved


def test_a_fused_kernel_saves_the_scores_of_every_head_but_for_a_number_per_row() -> None:
    """Dao et al., arXiv:2205.14135: 67.1 MB per head at 4096 tokens in fp32, where Q, K and V are 3.1 MB."""
    scores, row_numbers = 4 * LENGTH**2, 4 * LENGTH
    assert (round(scores / 1e6, 1), round(3 * 4 * LENGTH * HEAD_SIZE / 1e6, 1)) == (67.1, 3.1)
    saving = saved_bytes(attention="eager") - saved_bytes(attention="efficient")
    assert saving == BLOCKS * (HEADS * (scores - row_numbers) - RANDOM_STATE_BYTES)


def test_dropout_makes_eager_attention_keep_nine_bytes_per_score() -> None:
    """Probabilities and dropped probabilities in fp32, and a mask of one byte; a fused kernel keeps neither."""
    saving = saved_bytes(attention="eager", dropout=0.1) - saved_bytes(attention="efficient", dropout=0.1)
    assert saving == BLOCKS * (HEADS * (9 * LENGTH**2 - 4 * LENGTH) - RANDOM_STATE_BYTES)


# A vision-language run as a text budgets it, in GB: 6.8 of fp16 parameters, of which the encoder's 1.2 are frozen.
BUDGET: dict[str, Any] = {
    "runtime": "textbook",
    "model": "3.4B",
    "gpu": "a100-40gb",
    "precision": "mixed-fp16",
    "activation_bytes": "16 GB",  # 8 in half precision
    "micro_batch_size": 32,
}


def components(**keys: Any) -> dict[str, float]:
    result = fit(**{**BUDGET, **keys})
    return {part.name: part.bytes / 1e9 for part in result.components}


def test_the_vision_language_budget_as_quoted() -> None:
    """Every parameter is charged for gradients and states, and the optimizer is halved: 42 GB, or 36."""
    halves = {"master_dtype": "fp16", "optimizer_state_dtype": "fp16"}
    quoted = components(**halves)
    assert quoted["weights"] == quoted["gradients"] == 6.8
    assert round(quoted["master"] + quoted["optimizer"], 6) == 20.4
    assert quoted["activations"] == 8
    assert round(sum(quoted.values()), 6) == 42
    assert round(sum(components(**halves, checkpoint_factor=4).values()), 6) == 36


def test_the_vision_language_budget_with_the_encoder_frozen() -> None:
    """2.8 of the 3.4 billion parameters are trained: 33.6 GB of states with fp32 master and moments."""
    frozen = components(trainable_parameters="2.8B")
    assert (frozen["weights"], frozen["gradients"]) == (6.8, 5.6)
    assert round(frozen["master"] + frozen["optimizer"], 6) == 33.6
    halves = components(trainable_parameters="2.8B", master_dtype="fp16", optimizer_state_dtype="fp16")
    assert round(halves["master"] + halves["optimizer"], 6) == 16.8
    pure = components(trainable_parameters="2.8B", precision="pure-fp16")
    assert ("master" in pure, pure["optimizer"]) == (False, 11.2)
    assert fit(**BUDGET, trainable_parameters="2.8B").trainable_parameters == 2_800_000_000
