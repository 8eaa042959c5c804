"""Closed form: a word that belongs to another key is answered with that key."""

from __future__ import annotations

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job

JOB = {"model": "gpt2", "gpu": "a100"}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("key", "word", "hint"),
    [
        ("weight_dtype", "nf4", "it is a value of quantization (--quantization)"),
        ("precision", "4bit", "it is a value of quantization (--quantization)"),
        ("optimizer", "zero3", "it is a value of parallel.sharding (--sharding)"),
        ("optimizer", "badam", "it is a value of trained_blocks (--trained-blocks)"),  # though adam is near
        ("optimizer", "lisa", "it is a value of trained_blocks (--trained-blocks)"),
        ("optimizer", "lisa:2", "it is a value of trained_blocks (--trained-blocks)"),
        ("attention", "sqrt", "it is a value of activation_checkpointing (--checkpointing)"),
        ("activation_checkpointing", "flash_attention_2", "it is a value of attention (--attention)"),
    ],
)
def test_the_key_that_has_the_word_is_named(key: str, word: str, hint: str) -> None:
    with pytest.raises(InputError) as raised:
        build_job({**JOB, key: word})
    (problem,) = raised.value.problems
    assert (problem.key, problem.hint) == (key, hint)


@pytest.mark.contract
def test_a_slip_in_a_word_of_the_key_itself_and_a_word_of_several_keys_are_not() -> None:
    for word, begins in (("amp-bf15", "did you mean amp-bf16"), ("none", "known: ")):
        with pytest.raises(InputError) as raised:
            build_job({**JOB, "precision": word})
        assert str(raised.value.problems[0].hint).startswith(begins)
