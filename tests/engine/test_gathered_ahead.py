"""FSDP1 before PyTorch 2.1: what it gathers is free when the device has come so far, not when the program lets go."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.ahead import QUEUED_LAUNCHES, with_late_ends
from vramplan.replay.caching.run import reserve
from vramplan.replay.record import Record
from vramplan.replay.step import replay
from vramplan.replay.tensors import round_up

MICRO = 2
LAYERS, HIDDEN = 8, 512
JOB: dict[str, Any] = {
    "model": {
        "family": "torchvision_vit",
        "task": "image",
        "layers": LAYERS,
        "hidden_size": HIDDEN,
        "attention_heads": 8,
        "intermediate_size": 4 * HIDDEN,
        "max_positions": 197,
        "image_size": 224,
        "patch_size": 16,
        "channels": 3,
        "classes": 10,
    },
    "gpu": "a100-40gb",
    "runtime": "pytorch",
    "precision": "fp32",
    "optimizer": "sgd",
    "micro_batch_size": MICRO,
    "gradient_accumulation_steps": 1,
    "parallel": {"data": 2, "sharding": "fsdp", "fsdp_version": 1},
}


def record(version: str, limit: bool | None = None) -> Record:
    parallel = {**JOB["parallel"], **({} if limit is None else {"limit_all_gathers": limit})}
    job = build_job({**JOB, "parallel": parallel, "pytorch_version": version})
    return replay(setup_of(job, "full", accumulates=False), batch=MICRO, unrolled=True)


def test_an_end_comes_behind_as_many_launches_as_are_queued() -> None:
    operators = [str(i) for i in range(QUEUED_LAUNCHES + 2)]
    others = [event for i in range(1, QUEUED_LAUNCHES + 2) for event in (i, ~i)]
    ((_, late),) = with_late_ends([("forward", [0, ~0, *others])], {0: True}, operators)
    assert late.index(~0) == late.index(QUEUED_LAUNCHES) - 1
    assert sorted(late) == sorted([0, ~0, *others])


def test_tensors_of_one_operator_are_one_launch() -> None:
    operators = ["all_gather"] + ["layer_norm"] * (QUEUED_LAUNCHES + 1)
    others = list(range(1, QUEUED_LAUNCHES + 2))
    ((_, late),) = with_late_ends([("forward", [0, ~0, *others])], {0: True}, operators)
    assert ~0 not in late  # free where the iteration ends


def test_what_is_free_at_once_in_forward_is_late_in_backward() -> None:
    operators = ["all_gather", "all_gather", "mm"]
    requests = [("forward", [0, ~0]), ("backward", [1, ~1, 2, ~2])]
    found = with_late_ends(requests, {0: False, 1: False}, operators)
    assert found == [("forward", [0, ~0]), ("backward", [1, 2, ~2])]


def test_a_program_that_waits_for_the_last_few_of_them_has_what_was_before() -> None:
    operators = [str(i) for i in range(5)]
    events = [0, ~0, 1, ~1, 2, ~2, 3, ~3, 4, ~4]
    stops = [events.index(i) for i in (1, 2, 3, 4)]  # before the fourth, what was launched at the first is done
    ((_, late),) = with_late_ends([("backward", events)], dict.fromkeys(range(5), True), operators, [stops])
    assert late == [0, 1, 2, 3, ~0, 4]


def test_a_device_that_is_full_waits_for_the_streams() -> None:
    old, new = record("2.0"), record("2.1")
    least = reserve(new, MICRO).reserved_bytes
    full = reserve(old, MICRO, limit_bytes=least)
    assert full.failure is None
    assert (full.reserved_bytes, full.retries) == (least, 1)


@pytest.mark.closed_form
def test_whole_weights_and_gradients_wait() -> None:
    old, new = record("2.0"), record("2.1")
    assert not new.awaited
    assert old.peak_bytes(MICRO) == new.peak_bytes(MICRO)  # nothing of it counts as allocated
    more = reserve(old, MICRO).reserved_bytes - reserve(new, MICRO).reserved_bytes
    segment = round_up(4 * (12 * HIDDEN**2 + 13 * HIDDEN), 2 << 20)  # of a block
    # All of the iteration is ahead: each block is gathered in forward and in backward, and has a whole gradient; two
    # of the former and one of the latter are there with a limit too, and holes may take what another block leaves.
    assert 3 * LAYERS * segment * 0.8 <= more <= 3 * LAYERS * segment


@pytest.mark.closed_form
def test_the_limit_may_be_asked_for_before_it_was_the_default_and_left_out_after() -> None:
    limited, unlimited = record("2.1"), record("2.0")
    assert record("2.0", limit=True).awaited == limited.awaited == {}
    assert record("2.1", limit=False).awaited == unlimited.awaited != {}


def test_fully_shard_has_no_such_switch() -> None:
    parallel = {"data": 2, "sharding": "fsdp", "fsdp_version": 2}
    with pytest.raises(InputError, match="fully_shard gathers one unit ahead"):
        build_job({**JOB, "parallel": {**parallel, "limit_all_gathers": False}})
    assert build_job({**JOB, "parallel": {**parallel, "limit_all_gathers": True}}).sharding is not None
    with pytest.raises(InputError, match="belongs to FSDP"):
        build_job({**JOB, "parallel": {"data": 2, "sharding": "ddp", "limit_all_gathers": True}})
