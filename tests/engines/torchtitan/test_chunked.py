"""torchtitan's loss in parts of the tokens, and experts that are spread over the devices of FSDP."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.errors import InputError
from vramplan.job import build_job

MODEL = {
    "name": "small",
    "family": "llama",
    "layers": 2,
    "hidden_size": 256,
    "attention_heads": 4,
    "intermediate_size": 688,
    "vocabulary_size": 64000,
    "max_positions": 2048,
    "tied_embeddings": False,
}
JOB = {"model": MODEL, "gpu": "h100", "runtime": "torchtitan", "sequence_length": 2048, "micro_batch_size": 4}
KEYS = {"optimizer": "sgd", "activation_checkpointing": "none", "precision": "pure-bf16"}


def peak(loss: str, **keys: Any) -> int:
    return answer(build_job({**JOB, **KEYS, "loss": loss, **keys})).peak.allocated_bytes


@pytest.mark.closed_form
def test_only_one_part_of_the_logits_is_there_at_a_time() -> None:
    """A logit of a part takes 2 bytes, 4 of its log-probability, 4 and 4 of gradients; one more is cast to 2."""
    logits = 4 * 2048 * 64000
    eight, sixteen = peak("chunked:8"), peak("chunked:16")
    assert eight - sixteen == pytest.approx((2 + 4 + 4 + 4) * (logits / 8 - logits / 16), rel=0.01)
    assert peak("standard") - eight > 4 * logits


def test_it_is_said_that_nobody_traced_it() -> None:
    assert (
        "loss chunked:8 was never traced with llama under torchtitan"
        in build_job({**JOB, "loss": "chunked:8"}).composed
    )


@pytest.mark.sweep
@pytest.mark.closed_form
@pytest.mark.parametrize("runtime", ["torchtitan", "transformers"])
def test_devices_of_experts_hold_as_many_bytes(runtime: str) -> None:
    keys = {"model": "qwen3-30b-a3b", "gpu": "b200", "runtime": runtime, "sequence_length": 256, "micro_batch_size": 1}
    shared = {"data": 8, "sharding": "fsdp"}
    apart, whole = (build_job({**keys, "parallel": {**shared, **more}}) for more in ({"expert": 8}, {}))
    assert any("among those of FSDP" in one.why for one in apart.assumptions)
    found = [{one.name: one.bytes for one in answer(job).components}["weights"] for job in (apart, whole)]
    assert found[0] == found[1]


def test_experts_are_not_spread_over_replicas() -> None:
    with pytest.raises(InputError, match=r"parallel\.expert"):
        build_job(
            {
                **JOB,
                "model": "mixtral-8x7b",
                "runtime": "transformers",
                "parallel": {"data": 8, "expert": 8, "sharding": "ddp"},
            }
        )
