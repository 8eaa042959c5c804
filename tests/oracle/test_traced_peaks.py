"""TRACED TRUTH. The figures are torch.cuda.max_memory_allocated() as a trace of the real model code gives it."""

from __future__ import annotations

import pytest

from tests.oracle.compare import FIGURES, FILES, rows

pytestmark = pytest.mark.truth

# The replay follows tensors one by one and rounds each as the allocator does, so nothing is left that a tolerance would
# have to cover: a deviation of one byte is a tensor that the rules do not know.
EXACT = 0.0


@pytest.mark.parametrize("direct", [False, True], ids=["quick", "every block"])
@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("file", FILES)
def test_every_row_is_exact(file: str, figure: str, direct: bool) -> None:
    wrong = {row.job.name: row.error(figure) for row in rows(file, direct=direct) if row.error(figure) > EXACT}
    assert wrong == {}


def test_the_rows_are_all_there() -> None:
    assert [len(rows(file)) for file in FILES] == [192, 330]


def test_the_rows_cover_what_is_modelled() -> None:
    jobs = [row.job for file in FILES for row in rows(file)]
    assert {job.model.transformers_model_type for job in jobs} == {"gpt2", "llama", "mistral", "qwen2", "bert"}
    assert {job.model.task for job in jobs} == {"lm", "mlm", "cls"}
    assert {job.precision for job in jobs} == {
        *("fp32", "amp-fp16", "amp-bf16", "mixed-fp16", "mixed-bf16", "pure-fp16", "pure-bf16"),
    }
    assert {job.attention for job in jobs} == {"eager", "flash", "efficient"}
    assert {(job.optimizer, job.optimizer_implementation) for job in jobs} >= {
        ("adamw", "foreach"),
        ("adamw", "fused"),
        ("adamw", "for-loop"),
        ("adam", "foreach"),
        ("sgd", "foreach"),
        ("sgd-momentum", "foreach"),
        ("rmsprop", "foreach"),
        ("adafactor", "foreach"),
        ("adam", "for-loop"),
        ("sgd", "for-loop"),
        ("rmsprop", "for-loop"),
        ("adafactor", "for-loop"),
    }
    assert {job.micro_batch_size == 1 for job in jobs} == {True, False}
    assert {job.hold_outputs for job in jobs} == {True, False}
    assert {(job.gradient_accumulation_steps or 1) > 1 for job in jobs} == {True, False}
    assert any(job.model.key_value_heads == 1 < job.model.attention_heads for job in jobs)
    assert any(job.model.head_size % 8 for job in jobs)
