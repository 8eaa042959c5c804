"""Distillation: what a job with a teacher may ask for, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.job.echo import job_to_dict

STUDENT: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "gpu": "h100",
    "precision": "pure-bf16",
    "sequence_length": 512,
    "runtime": "torchtune",
    "adapter": {"kind": "lora", "targets": ["q_proj", "v_proj"], "rank": 8},
    "micro_batch_size": 2,
    "activation_checkpointing": "none",
    "gradient_accumulation_steps": 1,
    "loss": "chunked:8",
}
TEACHER = {"teacher": "llama-3.1-8b"}


@pytest.mark.contract
def test_a_teacher_is_compared_with_as_the_recipes_do() -> None:
    one = build_job({**STUDENT, **TEACHER})
    assert one.teacher is not None
    assert (one.teacher.name, one.distillation) == ("llama-3.1-8b", "forward-kl")
    assert build_job(job_to_dict(one)).teacher == one.teacher


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"runtime": "litgpt"}, "the training loop of litgpt has no teacher"),
        ({"runtime": "transformers"}, "is not what TRL's GKDTrainer or DistillationTrainer computes"),
        ({"teacher": "qwen2.5-7b"}, "their logits cannot be compared"),
        ({"teacher": "bert-base"}, "do not both predict the next token"),
        ({"adapter": None}, "train adapters alone"),
        ({"parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1}}, "share the states by FSDP2"),
        ({"parallel": {"data": 2}, "optimizer": "adamw-paged"}, "share the states by FSDP2"),  # bitsandbytes: FSDP1
        ({"loss": "standard", "model": "qwen2-0.5b", "teacher": "qwen2-1.5b"}, "takes logits in chunks"),
        ({"teacher": None, "distillation": "reverse-kl"}, "reverse-kl needs a teacher"),
        ({"teacher": "lama-3.1-8b"}, "lama-3.1-8b"),
    ],
)
def test_what_the_recipes_do_not_run_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        build_job({**STUDENT, **TEACHER, **keys})
    assert said in str(caught.value)


@pytest.mark.closed_form
def test_a_teacher_costs_its_weights_and_what_the_divergence_saves() -> None:
    """Of logits of N rows: probabilities and log-probabilities in fp32, and a mask. The log-probabilities of the
    cross-entropy are there anyway."""
    rows, vocabulary = 2 * 512, 128256
    alone, taught = (answer(build_job({**STUDENT, **keys})).peak for keys in ({}, TEACHER))
    saved = taught.saved_bytes - alone.saved_bytes
    assert 0 <= saved - rows * vocabulary * (4 + 4 + 1) < 8 * 512 * 4 + rows * 8
    assert 0 <= taught.step_bytes - alone.step_bytes - 8030261248 * 2 < 2**27  # and its buffers


@pytest.mark.contract
def test_trl_has_a_loss_of_its_own() -> None:
    keys = {**STUDENT, **TEACHER, "runtime": "transformers", "loss": "standard"}
    one = build_job(keys)
    assert (one.distillation, one.dropout) == ("jsd", 0.0)
    with pytest.raises(InputError, match="transformers has no symmetric-kl"):
        build_job({**keys, "distillation": "symmetric-kl"})


@pytest.mark.contract
def test_a_loss_by_tiles_is_that_of_another_trainer() -> None:
    keys = {**STUDENT, **TEACHER, "runtime": "transformers", "loss": "tiled"}
    one = build_job(keys)
    assert (one.distillation, one.dropout) == ("reverse-kl", None)
    with pytest.raises(InputError, match="which returns the loss alone"):
        build_job({**keys, "hold_outputs": True})


SAVED: dict[str, Any] = {
    **STUDENT,
    "runtime": "transformers",
    "loss": "standard",
    "adapter": None,
    "teacher_logprobs": 20,
}


@pytest.mark.contract
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"runtime": "torchtune"}, "takes no predictions of a teacher from a file"),
        ({"teacher": "llama-3.1-8b"}, "its log-probabilities are saved"),
        ({"distillation": "symmetric-kl"}, "Axolotl has no symmetric-kl"),
        ({"loss": "fused"}, "fused is not what Axolotl's KDTrainer computes"),
        ({"model": "bert-base"}, "is not modelled for bert"),
        ({"parallel": {"data": 2, "sharding": "fsdp"}}, "which is a DTensor when the model has returned"),
        ({"parallel": {"data": 2, "sharding": "zero3"}}, "zero3 has let go of it"),
        ({"parallel": {"data": 2}}, "looks for the head (lm_head) in the model that it is given, which is DDP's"),
        ({"compile": True}, "is not modelled with teacher_logprobs"),
    ],
)
def test_saved_predictions_are_compared_with_as_axolotl_does(keys: dict[str, Any], said: str) -> None:
    assert build_job(SAVED).distillation == "forward-kl"
    for sharded in ({"data": 2, "sharding": "fsdp", "fsdp_version": 1}, {"data": 2, "sharding": "fsdp-grad-op"}):
        assert build_job({**SAVED, "parallel": sharded}).teacher_logprobs == 20
    assert build_job(job_to_dict(build_job(SAVED))).teacher_logprobs == 20
    with pytest.raises(InputError) as caught:
        build_job({**SAVED, **keys})
    assert said in str(caught.value)


@pytest.mark.closed_form
def test_saved_predictions_cost_the_logits_of_a_chunk() -> None:
    """Five times in fp32 and once in 16 bits; a chunk has all positions, or half of them where 1024 fit in twice."""
    vocabulary, hidden = 128256, 2048
    for length, rows in ((512, 1024), (1000, 2000), (1024, 1024)):
        found = answer(build_job({**SAVED, "sequence_length": length})).peak.forward_bytes
        without = answer(build_job({**SAVED, "teacher_logprobs": 1, "sequence_length": length})).peak.forward_bytes
        tokens = found - without  # of 19 more log-probabilities: 10 tensors, and what the batch has
        assert 0 <= tokens - 19 * (10 * 4 * rows + 16 * 2 * length) < 2**13
        chunk = rows * vocabulary * (5 * 4 + 2)
        states = 16 * length * 2 * hidden * 2
        assert chunk < found - 2 * 1235814400 * 3 - vocabulary * hidden * 2 < chunk + 40 * states
