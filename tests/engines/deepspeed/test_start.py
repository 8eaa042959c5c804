"""What DeepSpeed leaves on a device before its first iteration, against traces of `deepspeed.initialize`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import InputError
from vramplan.job import build_job
from vramplan.planner.setups import setup_of
from vramplan.replay.caching.run import SimulatedRun, reserve
from vramplan.replay.record import Record
from vramplan.replay.start import Start
from vramplan.replay.step import replay
from vramplan.values.allocator import DEFAULT
from vramplan.values.job import ResolvedJob

SAID = json.loads((Path(__file__).parent / "started.json").read_text(encoding="utf-8"))
LEAST_BYTES = 4096  # of what a row tells


BIG: dict[str, Any] = {
    "model": SAID["job"]["model"] | {"hidden_size": 2048, "intermediate_size": 8192, "vocabulary_size": 32000},
    "parallel": {"data": 4, "sharding": "zero2", "reduce_bucket_size": 50_000_000},
}
"""Large enough for what segments are rounded to not to matter."""

MANY = {"data": 1024, "reduce_bucket_size": 1_000_000}  # so that a part of the states is next to nothing


def job_of(row: dict[str, Any], **more: Any) -> ResolvedJob:
    return build_job(SAID["job"] | row["job"] | more)


def record_of(job: ResolvedJob) -> Record:
    return replay(setup_of(job, "none", accumulates=False), batch=1, unrolled=True)


def start_of(job: ResolvedJob) -> Start:
    found = record_of(job).start
    assert found is not None
    return found


def told(start: Start, events: Sequence[int | None]) -> list[int]:
    """As a row tells them."""
    sizes = [start.sizes[one] if one >= 0 else -start.sizes[~one] for one in events if one is not None]
    return [size for size in sizes if abs(size) >= LEAST_BYTES]


def row_of(kind: str, **more: Any) -> dict[str, Any]:
    wanted = {"parallel": {"data": 4, "sharding": kind, "reduce_bucket_size": 100000}, **more}
    return next(row for row in SAID["rows"] if row["job"] == wanted)


@pytest.mark.truth
@pytest.mark.parametrize("row", SAID["rows"], ids=lambda row: json.dumps(row["job"]).translate({34: None, 32: None}))
def test_the_start_is_that_of_the_trace(row: dict[str, Any]) -> None:
    """The trace begins with a model that is there; before stage 3 cuts it, zero.Init would have cut each weight."""
    job = job_of(row)
    assert job.sharding is not None
    start, traced = start_of(job), row["events"]
    if job.sharding.kind != "zero3":
        assert traced == told(start, start.events)[-len(traced) :]
        loaded = told(start, start.events)[: -len(traced)]
        assert all(size > 0 for size in loaded)
        return
    at = start.events.index(None)
    behind = told(start, start.events[at:])
    assert traced[-len(behind) :] == behind
    wholes = [one for one in start.events[:at] if one is not None and one >= 0][
        :: 1 if "parameters" in job.offload else 2
    ]
    cut = told(start, [one for one in start.events[:at] if one not in wholes])
    assert traced[: len(traced) - len(behind)] == cut


@pytest.mark.closed_form
def test_before_0_18_7_weights_go_through_the_host() -> None:
    row = {"job": BIG | {"parallel": BIG["parallel"] | MANY}}
    new, old = (record_of(job_of(row, deepspeed_version=one)) for one in ("0.18.7", "0.18.6"))
    assert new.start is not None
    assert old.start is not None
    assert old.start.events == new.start.if_short
    # both copies are there at once, or one of them and nothing else
    weights = new.start.needed_bytes // 2
    with_both, with_one = (reserve(one, 1).reserved_bytes for one in (new, old))
    assert with_both >= 2 * weights
    assert weights <= with_one < 1.8 * weights  # with gradients of the largest weights


def test_a_device_without_room_for_both_copies_takes_the_other_way() -> None:
    record = record_of(job_of({"job": BIG | {"parallel": BIG["parallel"] | MANY}}))
    assert record.start is not None
    least = record.start.needed_bytes
    roomy, full = (reserve(record, 1, limit_bytes=one) for one in (4 * least, least - 1))
    assert full.failure is None
    assert full.reserved_bytes < least <= roomy.reserved_bytes
    assert full.retries == 0


@pytest.mark.closed_form
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_what_the_start_leaves_is_what_the_replay_counts(kind: str) -> None:
    """No byte of it is counted twice, so that the simulation allocates what the replay says."""
    record = record_of(job_of({"job": BIG | {"parallel": BIG["parallel"] | {"sharding": kind}}}))
    found = SimulatedRun(record, 1, DEFAULT, None, None, (), waits=False).reservation()
    peak = record.peak_bytes(1)
    assert peak <= found.later_allocated_bytes <= 1.02 * peak  # what is not split off blocks


def test_a_named_release_decides_over_the_time_of_others() -> None:
    row = row_of("zero2")
    assumed = [one for one in job_of(row, pytorch_version="2.4").assumptions if one.key == "deepspeed_version"]
    assert [one.value for one in assumed] == ["before 0.18.7"]
    assert "PyTorch 2.4" in assumed[0].why
    assert not [one for one in job_of(row).assumptions if one.key == "deepspeed_version"]
    said = job_of(row, pytorch_version="2.4", deepspeed_version="0.19.0")
    assert said.sharding is not None
    assert said.sharding.zero is not None
    assert said.sharding.zero.flat_on_device


def test_stage_3_says_that_a_release_decides_nothing() -> None:
    assert any("decides nothing here" in one for one in job_of(row_of("zero3"), deepspeed_version="0.19.0").warnings)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"deepspeed_version": "0.18"}, "no release of DeepSpeed"),
        ({"deepspeed_version": "0.8.3"}, "0.8.3 is not modelled"),
        ({"deepspeed_version": "0.18.6", "parallel": {"data": 4, "sharding": "ddp"}}, "decides nothing"),
        ({"deepspeed_version": "0.18.6", "parallel": {"data": 1}, "runtime": "transformers"}, "decides nothing"),
    ],
)
def test_a_release_that_says_nothing_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        job_of(row_of("zero2"), **more)
