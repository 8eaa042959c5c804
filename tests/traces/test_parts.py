"""Rows that no job says: their files, and what the rigs make of one, without the libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracle.chosen import path_of
from tests.traces import composed, parts, rigs, titan_parts, titan_stages
from tests.traces.mcore import FORM, Stage, batches_of_a_block
from tests.traces.mcore_context import Shared
from tests.traces.mcore_experts import OF_EXPERTS, Mixture
from tests.traces.parts import PARTS, parts_of
from tests.traces.rigs import RIGS
from vramplan.engines.megatron.tensor_parallel import has_fused_softmax

SAID: dict[str, set[str]] = {
    "mcore": {*FORM, "act"},
    "mcore_experts": {*FORM, *OF_EXPERTS, "act", "sent", "received", "load", "expert_ffn"},
    "mcore_context": {*FORM, "context", "communication"},
    "titan_parts": {*titan_parts.KEYS},
    "titan_stages": {*titan_stages.FORM, *titan_stages.KEYS},
}
"""What a row may say: `act` follows from `gated`, and `load` is of the job, which has `received` in its place."""


@pytest.mark.contract
@pytest.mark.parametrize("file", PARTS)
def test_a_row_says_nothing_that_the_rig_does_not_know(file: str) -> None:
    assert {key for one in parts_of(file) for key in one["row"]} <= SAID[PARTS[file]]
    assert all(isinstance(size, int) for one in parts_of(file) for key, size in one.items() if key != "row")


@pytest.mark.contract
def test_rows_are_written_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = next(iter(PARTS))
    rows, copy = parts_of(file), tmp_path / "rows.json"
    before = path_of(file).read_text("utf-8")
    monkeypatch.setattr("tests.oracle.chosen.path_of", lambda _: copy)
    parts.write_parts(file, rigs.source_of(file), rows)
    assert copy.read_text("utf-8") == before
    assert parts_of(file) == rows


@pytest.mark.contract
def test_a_row_that_comes_out_otherwise_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def figures(_: str, part: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
        recorded = {"forward_bytes": part["forward_bytes"]}
        return recorded, {"forward_bytes": recorded["forward_bytes"] + wrong}

    monkeypatch.setattr(composed, "begin", lambda: None)
    monkeypatch.setattr(rigs, "figures_of", figures)
    for wrong, said in ((0, "2 exact, 0 off"), (512, "0 exact, 2 off")):
        assert rigs.trace_rows(RIGS["megatron"], 2, 0, ("expert_rows",)) == int(wrong > 0)
        assert said in capsys.readouterr().out


@pytest.mark.closed_form
@pytest.mark.parametrize(("pre", "post", "stages", "rank"), [(1, 1, 1, 0), (1, 0, 2, 0), (0, 0, 3, 4), (0, 1, 2, 4)])
def test_a_stage_is_in_the_shortest_pipeline_that_has_one(pre: int, post: int, stages: int, rank: int) -> None:
    one = Mixture({"pre": bool(pre), "post": bool(post), "tp": 2, "expert": 2})
    assert (one.stages, one.rank, one.spread) == (stages, rank, 4)


@pytest.mark.closed_form
def test_as_many_tokens_come_as_go_where_nothing_else_is_said() -> None:
    one = Mixture({"seq": 256, "micro": 2, "tp": 2, "sp": True})
    assert (one.sent, one.received) == (512, 1024)  # its part of the sequence, and that of both devices
    given = Mixture({"sent": 3, "received": 7, "tp": 2})
    assert (given.sent, given.received) == (3, 14)
    assert Stage({}).spread == 1


@pytest.mark.closed_form
@pytest.mark.parametrize(("pre", "rank"), [(True, 6), (False, 14)])
def test_what_is_traced_is_the_last_device_of_a_sequence(pre: bool, rank: int) -> None:
    one = Shared({"pre": pre, "post": True, "tp": 2, "context": 4, "seq": 512, "communication": "ring"})
    assert (one.spread, one.rank, one.length) == (8, rank, 128)
    assert one.mask() is None


@pytest.mark.closed_form
@pytest.mark.parametrize("keys", [32, 64, 128, 256, 4096])
def test_the_replay_takes_the_kernel_for_as_many_heads_as_fill_a_block(keys: int) -> None:
    block = batches_of_a_block(keys, keys)
    assert [has_fused_softmax(heads, keys) for heads in (block, 3 * block)] == [block % 4 == 0] * 2
    assert not has_fused_softmax(block + 1, keys)
