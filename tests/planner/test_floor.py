"""What a run's first replay says of the time of its others, and which iterations are one."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.answers.bounds import Bounds
from vramplan.answers.fit import describe
from vramplan.job import build_any_job
from vramplan.planner.decision import decide
from vramplan.planner.replays import Replays
from vramplan.planner.setups import setup_of
from vramplan.replay.step import replay
from vramplan.values.job import ResolvedJob

pytestmark = pytest.mark.contract


def job(**keys: Any) -> ResolvedJob:
    found = build_any_job({"model": "gpt2", "gpu": "a100-80gb", "activation_checkpointing": "none", **keys})
    assert isinstance(found, ResolvedJob)
    return found


@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "zero2", "zero3"])
def test_the_time_by_the_first_replay_is_below_the_answer_and_near(sharding: str) -> None:
    """By what accumulation adds, a part in fifty of a model as small as this."""
    shared = job(global_batch_size=128, parallel={"data": 4, "sharding": sharding})
    answer = describe(decide(shared, whole_ladder=False), with_remedies=False)
    assert answer.time is not None
    assert answer.recommended.micro_batch_size not in (None, 1)
    bound = Bounds().least_by_floor(shared, Replays()) * answer.time.samples_per_second
    assert 0.98 < bound <= 1 + 1e-9


@pytest.mark.parametrize(
    ("runtime", "sharding", "keys"),
    [
        *(("transformers", "zero3", keys) for keys in ({}, {"adapter": {"kind": "lora"}}, {"tiled_mlp": 4})),
        *(("deepspeed", "zero3", keys) for keys in ({"compile": True}, {"max_gradient_norm": 1.0})),
        *(("megatron", sharding, {}) for sharding in ("ddp", "distributed-optimizer", "fsdp")),
    ],
)
def test_an_iteration_that_finds_gradients_in_buffers_is_one_that_finds_none(
    runtime: str, sharding: str, keys: dict[str, Any]
) -> None:
    """The replay of a micro-step that is told of earlier ones has the same events and sizes as one that is not."""
    model = "llama-3.2-1b" if "tiled_mlp" in keys else "gpt2"
    shared = job(model=model, runtime=runtime, parallel={"data": 4, "sharding": sharding}, **keys)
    setup = setup_of(shared, "none", accumulates=True)
    assert setup == setup_of(shared, "none", accumulates=False)
    once, again = (replay(setup._replace(accumulating=accumulating), batch=2) for accumulating in (False, True))
    assert once.events == again.events
    for micro in (2, 5):
        assert once.peaks(micro) == again.peaks(micro)
        assert once.stranded_bytes(micro) == again.stranded_bytes(micro)


def test_one_search_tells_the_first_flash_attention_from_the_second() -> None:
    """What a GPU reaches is kept for the jobs of which it is the same, which is not so of two releases of PyTorch."""
    bounds = Bounds()
    keys = {"precision": "amp-bf16", "sequence_length": 1024, "micro_batch_size": 12}
    first, second = (bounds.least_without_sharing(job(**keys, pytorch_version=version)) for version in ("2.0", "2.2"))
    assert first > 1.02 * second
