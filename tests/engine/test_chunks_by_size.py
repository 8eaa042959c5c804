"""Unsloth's head and loss, by the chunks that its code makes and the buffers that TorchInductor compiles of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.test_in_place_loss import JOB, TOKENS, VOCABULARY
from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.replay.operators.chunks_by_size import chunks_of

GIB = 2**30


def peak_of(**more: Any) -> int:
    return answer(build_job(JOB | {"runtime": "unsloth"} | more)).peak.allocated_bytes


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("rows", "vocabulary", "most", "chunks"),
    [
        *((4096, 128_256, 4, 1), (8192, 128_256, 4, 1), (8400, 128_256, 4, 4), (16384, 262_144, 4, 4)),
        *((65536, 262_144, 4, 16), (66000, 262_144, 4, 20), (16384, 262_144, 13, 4), (1, 32, 1, 1)),
    ],
)
def test_chunks_come_in_fours_and_no_logits_are_larger_in_fp32(
    rows: int, vocabulary: int, most: int, chunks: int
) -> None:
    """Computed by hand from get_chunk_size: rows * vocabulary * 4 bytes / 2**30 / most, rounded up to fours."""
    assert chunks_of(rows, vocabulary, most) == chunks
    assert -(-rows // chunks) * vocabulary * 4 <= most * GIB


@pytest.mark.closed_form
@pytest.mark.parametrize("micro", [1, 3])
def test_a_batch_adds_its_logits_once_in_half(micro: int) -> None:
    """As the compiled function makes their gradient in their place, and gives no logits back."""
    more = peak_of(micro_batch_size=micro + 1) - peak_of(micro_batch_size=micro)
    logits = TOKENS * VOCABULARY
    assert logits * 2 < more < logits * 2.1


@pytest.mark.closed_form
def test_logits_with_a_bound_keep_their_log_probabilities_in_fp32() -> None:
    model = {**JOB["model"], "family": "gemma2", "key_value_heads": 4, "vocabulary_size": VOCABULARY}
    found = [peak_of(model=model, micro_batch_size=micro, attention="eager") for micro in (2, 3)]
    logits = TOKENS * VOCABULARY
    assert logits * 6 < found[1] - found[0] < logits * 6.3


@pytest.mark.closed_form
def test_a_trained_head_has_two_gradients_of_its_weight_while_a_chunk_runs() -> None:
    model = {**JOB["model"], "tied_embeddings": False}
    half = {"gpu": "a100-40gb", "precision": "pure-bf16", "weight_dtype": None, "runtime": "transformers"}
    job = {key: value for key, value in (JOB | half).items() if value is not None} | {
        "model": model,
        "loss": "fused-chunks:4",
        "optimizer": "sgd",
    }
    saved = {"kind": "lora", "rank": 8, "modules_to_save": ["lm_head"]}
    plain, trained = (answer(build_job(one)).peak.allocated_bytes for one in (job, job | {"adapter": saved}))
    weight = 2 * VOCABULARY * model["hidden_size"]  # bytes
    assert 3 * weight <= trained - plain < 3.1 * weight  # PEFT's copy of it, the sum of gradients and that of a chunk


@pytest.mark.closed_form
def test_smaller_chunks_need_less_and_ones_for_all_rows_as_much_as_any_larger() -> None:
    one, four = peak_of(loss="fused-chunks:1", micro_batch_size=4), peak_of(loss="fused-chunks:4", micro_batch_size=4)
    assert one < four == peak_of(micro_batch_size=4) == peak_of(loss="fused-chunks:9", micro_batch_size=4)


@pytest.mark.contract
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"runtime": "transformers", "compile": True}, "is not modelled in a compiled model"),
        (
            {"runtime": "transformers", "parallel": {"data": 2, "sharding": "fsdp"}},
            "is not modelled where devices share the weights",
        ),
        ({"runtime": "torchtune"}, "is not modelled"),
    ],
)
def test_it_is_refused_where_it_is_no_function_of_its_own(more: dict[str, Any], said: str) -> None:
    job = {key: value for key, value in JOB.items() if key not in ("precision", "weight_dtype")}
    with pytest.raises(InputError, match=said):
        build_job(job | {"gpu": "a100-40gb", "loss": "fused-chunks:4"} | more)
