"""Jobs of encoder-decoder models: the target length, the numbering of blocks, kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job, job_to_dict
from vramplan.replay.models.m2m_100 import M2M100
from vramplan.values.job import ResolvedJob

SIZES = {"layers": 3, "decoder_layers": 2, "hidden_size": 64, "intermediate_size": 64, "attention_heads": 4}
T5 = {"family": "t5", **SIZES}
BART = {"family": "bart", **SIZES, "max_positions": 128}
FIXED = {"gpu": "a100-80gb", "sequence_length": 64, "micro_batch_size": 16, "gradient_accumulation_steps": 1}


def job(model: Any, **keys: Any) -> ResolvedJob:
    built = build_job({**FIXED, "model": model, **keys})
    assert isinstance(built, ResolvedJob)
    return built


def refused(model: Any, **keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        job(model, **keys)
    return str(caught.value)


def allocated(model: Any, **keys: Any) -> int:
    return answer(job(model, activation_checkpointing="none", **keys)).peak.allocated_bytes


@pytest.mark.parametrize("model", [T5, BART])
def test_the_target_is_as_long_as_the_source_unless_it_is_said(model: dict[str, Any]) -> None:
    sizes = {target: allocated(model, target_length=target) for target in (None, 1, 32, 64, 100)}
    assert sizes[None] == sizes[64]
    assert sizes[1] < sizes[32] < sizes[64] < sizes[100]


@pytest.mark.parametrize("model", [T5, BART])
@pytest.mark.parametrize("target", [None, 64, 7])
def test_the_echo_keeps_the_target(model: dict[str, Any], target: int | None) -> None:
    built = job(model, target_length=target)
    echoed = job_to_dict(built)
    assert echoed["target_length"] == target
    history = {"assumptions": (), "allocator_offered": None}
    assert build_job(echoed)._replace(**history) == built._replace(**history)


def test_a_target_needs_a_decoder_and_positions() -> None:
    assert "gpt2 has no decoder beside an encoder (sequence_length alone)" in refused("gpt2", target_length=8)
    assert "200 is more than the 128 positions" in refused(BART, target_length=200)
    assert job(T5, target_length=5000).target_length == 5000
    assert "target_length: no equation of the textbook" in refused(T5, target_length=8, runtime="textbook")


def test_blocks_are_numbered_through_both_stacks() -> None:
    result = answer(job(BART, activation_checkpointing="full"))
    assert result.checkpoints == ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    result = answer(job(T5, activation_checkpointing="layers:[[1,2],[3,4]]"))
    assert result.checkpoints == ((1, 2), (3, 4))
    message = (
        "the segment [2,3] reaches from one stack into the other: the second stack of inline t5 begins with block 3"
    )
    assert message in refused(T5, activation_checkpointing="layers:[[2,3]]")
    assert "the blocks of inline t5 are 0 to 4" in refused(T5, activation_checkpointing="layers:[[3,5]]")
    (warning,) = job(T5, activation_checkpointing="selective-layer:4").warnings
    assert warning == "selective-layer:4 recomputes nothing: inline t5 has 3 and 2 blocks"


def test_the_bias_of_t5_wants_the_memory_efficient_kernel() -> None:
    built = job(T5, precision="amp-bf16")
    assert built.attention == "efficient"
    (told,) = (one for one in built.assumptions if one.key == "attention")
    assert "a bias on the scores, which the flash kernels do not take" in told.why
    assert "flash cannot run" in refused(T5, precision="amp-bf16", attention="flash")
    assert job(BART, precision="amp-bf16").attention == "flash"


def test_what_is_selective_is_so_in_both_stacks() -> None:
    result = answer(job(BART, activation_checkpointing="selective-op"))
    assert result.checkpoints == ((0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    for model in (T5, BART):
        assert answer(job(model, activation_checkpointing="selective")).checkpoints == ()


def test_a_classification_loss_makes_a_classifier_of_roberta() -> None:
    built = job("roberta-base", loss="classification")
    assert (built.model.task, built.model.declared_parameters) == ("cls", None)
    assert job({"family": "roberta", "layers": 2}, loss="classification").model.task == "cls"
    assert "the task of t5-small is seq2seq" in refused("t5-small", loss="classification")


@pytest.mark.parametrize("family", ["pegasus", "marian"])
def test_a_table_of_sines_has_so_many_rows(family: str) -> None:
    model = {**BART, "family": family}
    for key in ("sequence_length", "target_length"):
        said = refused(model, **{key: 129})
        assert f"{key}: 129 is more than the 128 positions that" in said
        assert "learned" not in said
        assert job(model, **{key: 128})


def test_sines_of_m2m100_grow_with_the_sequence() -> None:
    """M2M100SinusoidalPositionalEmbedding.forward makes as many rows as it needs, and two more."""
    of: Any = SimpleNamespace(recipe=SimpleNamespace(shape=SimpleNamespace(max_positions=128)))
    assert [M2M100.rows(of, length) for length in (1, 128, 129, 200)] == [130, 130, 133, 204]
    assert job({**BART, "family": "m2m_100"}, sequence_length=200, target_length=129)
