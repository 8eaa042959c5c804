"""Sequences that are split over devices: rows of Transformer Engine's own code, and what must always hold.

The rows of `context_rows.json` are megatron-core 0.16.1 with the context-parallel attention functions of Transformer
Engine 2.10, on tensors without data, torch 2.13; the fused kernel allocates its results, and what the flash kernel
needs beside them in backward. They are of the last device of the ring.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.cli.running import run
from tests.engines.megatron.test_megatron import job_of, rows, sent_bytes, setup_of
from vramplan.job import build_job
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.parallel import ALL_GATHER, DISTRIBUTED_OPTIMIZER, RING

ROWS = json.loads((Path(__file__).parent / "context_rows.json").read_text())["rows"]
COUNT = 42
WAYS = (RING, ALL_GATHER)


def shared(row: dict[str, Any]) -> Setup:
    """The iteration of a row whose sequences are split."""
    plain = {key: value for key, value in row.items() if key not in {"context", "communication"}}
    setup = setup_of(plain)
    assert setup.split is not None
    split = setup.split._replace(context=row["context"], context_communication=row["communication"])
    return setup._replace(attention="flash", split=split)


@pytest.mark.truth
@pytest.mark.parametrize("way", WAYS)
def test_what_the_libraries_allocate(way: str) -> None:
    """Forward and backward of one micro-batch, to the byte; the optimizer's states were not there."""
    wrong = []
    for traced in ROWS:
        row = traced["row"]
        if row["communication"] != way:
            continue
        micro: int = row.get("micro", 2)
        record = replay(shared(row), batch=1 if micro == 1 else 2)
        apart = sum(one.at(micro) for one in record.states if one.category in ("master", "optimizer", "gradients"))
        peaks = record.peaks(micro)
        beside = traced["main_gradient_bytes"] + traced["other_bytes"] - apart
        found = {
            "static_bytes": record.static_bytes(micro) - apart,
            "saved_bytes": record.saved_bytes(micro) + sent_bytes({**row, "seq": row["seq"] // row["context"]}),
            "forward_bytes": peaks["forward"] + beside,
            "backward_bytes": peaks["backward"] + beside,
        }
        wrong += [(row, key, size, traced[key]) for key, size in found.items() if size != traced[key]]
    assert not wrong


@pytest.mark.truth
def test_no_row_is_lost() -> None:
    assert len(ROWS) == COUNT
    assert {row["row"]["communication"] for row in ROWS} == set(WAYS)


@given(row=rows(), context=st.sampled_from((2, 4)), way=st.sampled_from(WAYS))
@settings(max_examples=15, deadline=None)
def test_one_replay_stands_for_every_micro_batch_and_block(row: dict[str, Any], context: int, way: str) -> None:
    setup = shared({**row, "seq": 16 * context * row["tp"], "context": context, "communication": way})
    micro = row["micro"]
    record = replay(setup, batch=1 if micro == 1 else 2)
    literal = replay(setup, batch=micro, direct=True)
    assert record.peaks(micro) == literal.peaks(micro)
    assert record.saved_bytes(micro) == literal.saved_bytes(micro)
    assert record.end_bytes(micro) == record.static_bytes(micro)


@pytest.mark.parametrize("way", WAYS)
def test_more_devices_of_a_sequence_never_hold_more(way: str) -> None:
    """But for the buffers of its steps, and one number for each step's dropout."""
    row = {"rope": True, "gated": True, "bias": False, "kv": 4, "seq": 2048, "communication": way}
    sizes = [replay(shared({**row, "context": context})).peak_bytes(2) for context in (2, 4, 8, 16)]
    assert sizes == sorted(sizes, reverse=True)


PARALLEL = {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "context": 2, "data": 2}


def test_all_ways_to_split_go_together() -> None:
    result = answer(job_of(parallel={**PARALLEL, "sharding": DISTRIBUTED_OPTIMIZER}, gradient_accumulation_steps=4))
    echoed = result.to_dict()["job"]
    assert echoed["parallel"]["shards"] == 4  # states are shared over data and context
    again = answer(build_job(echoed))
    assert again.peak == result.peak
    assert again.components == result.components


@pytest.mark.parametrize("way", WAYS)
def test_the_way_is_echoed(way: str) -> None:
    job = job_of(parallel={"context": 2, "context_communication": way})
    echoed = answer(job).to_dict()["job"]["parallel"]
    assert (echoed["context"], echoed["context_communication"]) == (2, way)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--context 2 --attention eager", "attention"),
        ("--context 3", "parallel.context"),
        ("--context 2 --sharding zero1 --gpus 2", "parallel.context"),
        ("--context-communication ring", "parallel.context_communication"),
        ("--context 2 --context-communication rings", "did you mean"),
    ],
)
def test_what_does_not_go_with_it_is_refused(options: str, word: str) -> None:
    ran = run("fit", "--model", "gpt2-xl", "--gpu", "a100", "--runtime", "megatron", *options.split())
    assert ran.code == 2
    assert word in ran.err
