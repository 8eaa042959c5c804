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
