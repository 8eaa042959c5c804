"""Records that several micro-batches of a compiled step share, against the replay at each of them."""

from __future__ import annotations

from typing import Any

import pytest

from vramplan.job import build_job
from vramplan.planner import alike
from vramplan.planner.alike import AlikeRecords
from vramplan.planner.reserving import records_at
from vramplan.planner.setups import setup_of
from vramplan.replay.compared_sizes import ComparedSizes
from vramplan.replay.record import Record
from vramplan.replay.setup import Setup

BASE: dict[str, Any] = {"gpu": "h100-80gb", "compile": True, "gradient_accumulation_steps": 4}
JOBS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model": "gpt2", "sequence_length": 512}, "none"),
    ({"model": "llama-3.2-1b", "sequence_length": 512, "parallel": {"data": 4, "sharding": "zero3"}}, "full"),
    ({"model": "bert-base", "sequence_length": 64, "precision": "fp32"}, "none"),
    ({"model": "qwen2.5-0.5b", "sequence_length": 8, "parallel": {"data": 4, "sharding": "ddp"}}, "full"),
)


def setup(keys: dict[str, Any], strategy: str) -> Setup:
    return setup_of(build_job({**BASE, **keys}), strategy, accumulates=True)


def as_played(record: Record | None, micro: int) -> Any:
    if record is None:
        return None
    states = [(one.category, one.at(micro), one.copies) for one in record.states]
    made = (record.weight_bytes, record.load_bytes, record.state_bytes, record.stated_behind, record.start)
    waits = (record.awaited, record.waits, record.elsewhere, record.without_a_block(micro), record.left_whole)
    return record.requests, record.sizes(micro), record.operators, record.categories, states, made, waits


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("keys", "strategy"), JOBS)
def test_a_micro_batch_has_the_records_of_its_own_replay(keys: dict[str, Any], strategy: str) -> None:
    one = setup(keys, strategy)
    shared = AlikeRecords(one, varied=False)
    for micro in (8, 7, 2, 300, 5, 1):
        own = records_at(one, micro, varied=False)
        assert [[as_played(each, micro) for each in pair] for pair in shared.at(micro)] == [
            [as_played(each, micro) for each in pair] for pair in own
        ]


def test_a_search_plays_few_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def noted(one: Setup, micro: int, **how: bool) -> Any:
        played.append(micro)
        return records_at(one, micro, **how)

    monkeypatch.setattr(alike, "records_at", noted)
    shared = AlikeRecords(setup({"model": "qwen2.5-0.5b", "sequence_length": 512}, "none"), varied=False)
    for micro in (16, 15, 13, 9, 11, 10, 16, 8):
        shared.at(micro)
    assert played == [16]


def test_where_two_sizes_are_equal_the_step_is_another_one() -> None:
    """Eight tokens of a sequence against a table of 128,256 rows: 16,032 samples have as many tokens."""
    one = setup({"model": "llama-3.2-1b", "sequence_length": 8}, "none")
    shared = AlikeRecords(one, varied=False)
    usual = shared.at(40)
    assert shared.at(40_000) is usual
    assert 16_032 in shared.spans[-1].apart
    for micro in sorted(shared.spans[-1].apart):
        own = records_at(one, micro, varied=False)
        assert as_played(shared.at(micro)[0][0], micro) == as_played(own[0][0], micro) != as_played(usual[0][0], micro)


def test_a_size_decides_nothing_of_what_stays_anyway() -> None:
    """At 1, 2, 4, 8 and 16 samples of 512 tokens results are as large as weights that come from the host, which the
    program holds until the next ones come.
    """
    sharded = {"data": 4, "sharding": "zero3"}
    keys = {"model": "llama-3.2-1b", "sequence_length": 512, "loss": "fused", "offload": ["parameters", "optimizer"]}
    one = setup({**keys, "parallel": sharded}, "full")
    shared = AlikeRecords(one, varied=False)
    usual = shared.at(4)
    for micro in (2, 8, 16):
        assert shared.at(micro) is usual
        own = records_at(one, micro, varied=False)
        assert as_played(usual[0][0], micro) == as_played(own[0][0], micro)


@pytest.mark.parametrize("batch", [2, 3, 10, 24])
@pytest.mark.parametrize(("fixed", "each"), [(-24, 2), (24, -2), (-25, 2), (25, -2), (5, 0), (-5, 0), (0, 3), (1, -1)])
def test_sizes_compare_alike_where_it_is_said(fixed: int, each: int, batch: int) -> None:
    """Every micro-batch up to 40, by comparing there."""
    told = ComparedSizes(batch)
    found = told.reaches(fixed, each)
    alike = [micro for micro in range(2, 41) if (fixed + each * micro >= 0) is found]
    assert [micro for micro in range(2, 41) if told.first <= micro <= told.last] == alike


@pytest.mark.parametrize("batch", [2, 3, 4, 9])
@pytest.mark.parametrize(("fixed", "each"), [(12, 3), (12, 5), (8, 4), (0, 7), (7, 7)])
def test_sizes_are_equal_at_one_micro_batch_at_most(fixed: int, each: int, batch: int) -> None:
    for turned in (False, True):
        told = ComparedSizes(batch)
        size = each * batch
        sizes = (size, True, fixed, False) if turned else (fixed, False, size, True)
        found = told.differ(*sizes)
        alike = [micro for micro in range(2, 41) if (fixed != each * micro) is found]
        known = [micro for micro in range(2, 41) if told.first <= micro <= told.last and micro not in told.apart]
        assert known == alike
