"""CLOSED FORM: what selective checkpointing and other losses keep, counted by hand."""

from __future__ import annotations

import pytest

from tests.engine.draws import shape
from vramplan.planner.checkpoints import checkpoint_ranges, segments_of
from vramplan.replay.models.modules import Segment
from vramplan.replay.operators.fused_loss import chunk_rows
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay

pytestmark = pytest.mark.closed_form

LAYERS, HEADS, HEAD, VOCABULARY = 5, 4, 64, 1000
BATCH, LENGTH = 3, 256  # multiples of 256 bytes everywhere, so that rounding adds nothing to what is counted
HIDDEN = HEADS * HEAD
TOKENS = BATCH * LENGTH


def record(
    strategy: str = "none",
    *,
    family: str = "llama",
    attention: str = "flash",
    precision: str = "pure-bf16",
    every_second_matmul: bool = False,
    loss: str = "causal-lm-fp32",
    p: float = 0.0,
    vocabulary: int = VOCABULARY,
) -> Record:
    task = "mlm" if family == "bert" else "lm"
    setup = Setup(
        model=shape(family, LAYERS, HEADS, HEADS, HEAD, vocabulary, True, task, p),
        precision=precision,
        sequence_length=LENGTH,
        attention=attention,
        segments=segments_of(strategy, LAYERS, every_second_matmul=every_second_matmul),
        optimizer="adamw",
        optimizer_implementation="fused",
        accumulating=False,
        hold_outputs=False,
        loss=loss,
    )
    return replay(setup)


def test_selective_leaves_34_sbh_of_a_block() -> None:
    """Korthikanti et al., arXiv:2205.05198, section 5: of sbh(34 + 5as/h) the term with the scores goes."""
    stored = record(family="bert", attention="eager", p=0.1).saved_bytes(BATCH)
    selective = record("selective", family="bert", attention="eager", p=0.1).saved_bytes(BATCH)
    assert stored - selective == LAYERS * 5 * BATCH * HEADS * LENGTH**2


def test_selective_keeps_all_but_the_statistics_of_fused_attention() -> None:
    """Flash stores its output, which the next product needs, and 4 bytes a row, the seed and the offset."""
    stored = record().saved_bytes(BATCH)
    selective = record("selective").saved_bytes(BATCH)
    statistics = TOKENS * HEADS * 4 + 2 * 512
    positions = 8 * LENGTH  # an argument of the attention function, which its checkpoint keeps; one for all blocks
    assert stored - selective == LAYERS * statistics - positions


@pytest.mark.parametrize(("every_second", "products"), [(False, 4 + 3 + 3 + 1), (True, 1 + 1 + 3 + 1)])
def test_selective_op_keeps_results_of_products(every_second: bool, products: int) -> None:
    """Of a Llama block: q, k, v, o, gate, up (three times as wide), down; every second one: q, v, gate, down."""
    full = record("full").saved_bytes(BATCH)
    kept = record("selective-op", every_second_matmul=every_second).saved_bytes(BATCH)
    attention = TOKENS * HIDDEN * 2 + TOKENS * HEADS * 4 + 2 * 512
    assert kept - full == LAYERS * (products * TOKENS * HIDDEN * 2 + attention)


def test_selective_op_computes_no_product_twice() -> None:
    assert record("selective-op").flops["recompute"] == 0
    again = record("selective-op", every_second_matmul=True).flops["recompute"]
    assert again == LAYERS * 2 * TOKENS // BATCH * 2 * HIDDEN * (HIDDEN + HIDDEN + 3 * HIDDEN)  # k, o, up; batch of 2


def test_selective_op_keeps_the_batched_products_of_eager_attention() -> None:
    full, kept = (record(strategy, attention="eager") for strategy in ("full", "selective-op"))
    assert kept.flops["recompute"] == 0
    products = 11 * TOKENS * HIDDEN * 2 + BATCH * HEADS * LENGTH**2 * 2 + TOKENS * HIDDEN * 2  # scores and context
    assert kept.saved_bytes(BATCH) - full.saved_bytes(BATCH) == LAYERS * products


def test_every_kth_block() -> None:
    assert checkpoint_ranges("selective-layer:2", 5) == ((1, 1), (3, 3))
    assert checkpoint_ranges("selective-layer:3", 6) == ((2, 2), (5, 5))
    assert checkpoint_ranges("selective-layer:6", 5) == ()
    assert segments_of("selective-layer:1", 5) == segments_of("full", 5)
    assert segments_of("selective-layer:6", 5) == (Segment(1, 5, False),)


def test_a_chunked_loss_stores_what_the_whole_one_does() -> None:
    """Eager, every chunk keeps its log-probabilities in fp32; only scalars are new."""
    whole, chunked = record().saved_bytes(BATCH), record(loss="chunked:4").saved_bytes(BATCH)
    assert chunked - whole == 512 * (3 + 1)  # a total weight for three more chunks, and the count


def test_a_chunked_loss_casts_one_chunk_at_a_time() -> None:
    whole, chunked = (record(loss=loss).peaks(BATCH)["forward"] for loss in ("causal-lm-fp32", "chunked:4"))
    casts = 3 * TOKENS // 4 * VOCABULARY * 4
    hidden = TOKENS * HIDDEN * 2  # its chunks are no contiguous matrices, so that the head copies them
    scalars = 512 * (3 + 1 + 1)  # three total weights, the count, and the sum so far
    padded = 512  # labels of one token more, which Transformers' loss still holds
    assert whole - chunked == casts - hidden - scalars + padded


def test_a_fused_loss_stores_gradients_instead_of_logits() -> None:
    """The gradients of the hidden states and of the weight; no logits and no labels."""
    vocabulary = 50000
    whole, fused = (record(loss=loss, vocabulary=vocabulary) for loss in ("causal-lm-fp32", "fused"))
    logits = TOKENS * vocabulary * 4
    labels = 8 * TOKENS
    gradients = TOKENS * HIDDEN * 2 + vocabulary * HIDDEN * 2
    hidden = TOKENS * HIDDEN * 2  # the head's own saved input
    assert whole.saved_bytes(BATCH) - fused.saved_bytes(BATCH) == logits + labels + 512 + hidden - gradients


def test_rows_of_a_chunk() -> None:
    assert chunk_rows(4096 * 4, 4096, 32000) == 2048  # the example in its source
    assert chunk_rows(200, 64, 1000) == 16
    assert chunk_rows(7, 512, 64) == 7  # one chunk
    assert chunk_rows(1, 8, 50257) == 1
