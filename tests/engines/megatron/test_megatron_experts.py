"""Megatron's mixtures of experts over devices: rows of the library's own code, and what must always hold.

The rows of `expert_rows.json` are megatron-core 0.16.1, its router, dispatcher and experts, on tensors without data,
torch 2.13 (`python -m tests.traces check megatron`); how many tokens a device receives was given, as no data says it,
and numbers of tokens for each expert are on the host. `received` is what a device got of all, where it is not the mean.
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
from tests.engines.megatron.test_megatron import sent_bytes, setup_of
from tests.traces.mcore import FORM
from vramplan.job import build_job
from vramplan.replay.setup import Setup
from vramplan.replay.step import replay
from vramplan.values.model import Experts
from vramplan.values.parallel import DDP, DISTRIBUTED_OPTIMIZER, Sharded

ROWS = json.loads((Path(__file__).parent / "expert_rows.json").read_text())["rows"]
COUNT, RECOMPUTED = 14, 2
OWN = ("expert", "experts", "active", "received", "expert_ffn", "factor", "pad", "load", "sent")


def spread(row: dict[str, Any]) -> Setup:
    """The iteration of a row with experts."""
    setup = setup_of({key: value for key, value in row.items() if key not in OWN})
    micro, active = row.get("micro", 2), row.get("active", 2)
    load = row["received"] / (row["seq"] * micro * active) if "received" in row else 1.0
    factor: float | None = row.get("factor")
    hidden = setup.model.hidden_size
    experts = Experts(row.get("experts", 4), active, 0, row.get("expert_ffn", 4 * hidden), None, True, ())
    assert setup.split is not None
    return setup._replace(
        split=setup.split._replace(expert=row.get("expert", 1)),
        expert_imbalance=load if factor is None else row.get("load", 1.0),
        expert_capacity_factor=factor,
        expert_pad_to_capacity=row.get("pad", False),
        model=setup.model._replace(experts=experts),
    )


def figures(row: dict[str, Any], traced: dict[str, Any]) -> dict[str, int]:
    """What the replay has in the place of what was traced."""
    micro: int = row.get("micro", 2)
    record = replay(spread(row), batch=1 if micro == 1 else 2)
    apart = sum(one.at(micro) for one in record.states if one.category in ("master", "optimizer", "gradients"))
    beside = traced["main_gradient_bytes"] + traced["other_bytes"] - apart
    peaks = record.peaks(micro)
    return {
        "static_bytes": record.static_bytes(micro) - apart,
        "saved_bytes": record.saved_bytes(micro),
        "forward_bytes": peaks["forward"] + beside,
        "backward_bytes": peaks["backward"] + beside,
    }


@pytest.mark.truth
def test_what_the_library_allocates() -> None:
    """Forward and backward of one micro-batch, to the byte.

    Routing weights, which stay until the next micro-batch is routed, hold their graph: of a middle stage the trace
    begins with an input and its gradient, which are gone before forward has most.
    """
    wrong = []
    for traced in ROWS:
        row = traced["row"]
        if row.get("recompute") != "full":
            found = figures(row, traced)
            stale = 0 if row.get("pre", True) else 2 * 2 * row["seq"] * row.get("micro", 2) * FORM["hidden"]
            found["static_bytes"] += stale
            found["saved_bytes"] += sent_bytes(row) - stale
            wrong += [(row, key, size, traced[key]) for key, size in found.items() if traced[key] != size]
    assert not wrong


@pytest.mark.truth
def test_full_recomputation_is_not_below_what_the_library_allocates() -> None:
    """What routers' graphs keep of checkpoints counts throughout: 2 tensors of 256 KiB here, of peaks above 25 MB."""
    rows = [one for one in ROWS if one["row"].get("recompute") == "full"]
    assert (len(ROWS), len(rows)) == (COUNT, RECOMPUTED)
    for traced in rows:
        found = figures(traced["row"], traced)
        real = max(traced["forward_bytes"], traced["backward_bytes"])
        assert real <= max(found["forward_bytes"], found["backward_bytes"]) <= real + 2 * 2**18


def sizes(setup: Setup) -> dict[str, int]:
    """The states of a device by their component."""
    found: dict[str, int] = {}
    for state in replay(setup).states:
        found[state.category] = found.get(state.category, 0) + state.at(2)
    return found


ROW = {"layers": 2, "gated": True, "rope": True, "bias": False, "kv": 4, "tied": False, "seq": 256, "experts": 8}


def test_experts_are_shared_by_fewer_devices_than_the_rest() -> None:
    """Of 8 data-parallel devices with 4 of experts, 2 have the same experts and 8 the same of all else."""
    setup = spread({**ROW, "expert": 4})._replace(sharding=Sharded(DISTRIBUTED_OPTIMIZER, 8))
    whole = sizes(setup._replace(sharding=Sharded(DDP, 8)))
    experts = 2 * 2 * 3 * 256 * 1024 * 4  # layers, experts here, matrices, elements, bytes
    rest = whole["master"] - experts
    assert sizes(setup)["master"] == pytest.approx(experts / 2 + rest / 8, rel=0.01)  # parts are no whole tensors


@pytest.mark.sweep(2)
@given(
    expert=st.sampled_from((1, 2, 4, 8)),
    load=st.sampled_from((1.0, 1.3, 4.0)),
    micro=st.sampled_from((1, 2, 3)),
    tensor=st.sampled_from((1, 2)),
    recompute=st.sampled_from((None, "full", "selective")),
    factor=st.sampled_from((None, 0.7, 1.25, 5.0)),
    pad=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_one_replay_stands_for_every_micro_batch_and_block(
    expert: int, load: float, micro: int, tensor: int, recompute: str | None, factor: float | None, pad: bool
) -> None:
    factor = min(factor, 4.0) if factor is not None and pad else factor  # there are 8 experts, of which 2 are active
    row = {**ROW, "seq": 64, "expert": expert, "tp": tensor, "sp": tensor > 1, "recompute": recompute, "layers": 3}
    pads = pad and factor is not None
    setup = spread(row)._replace(expert_imbalance=load, expert_capacity_factor=factor, expert_pad_to_capacity=pads)
    record, literal = replay(setup, batch=1 if micro == 1 else 2), replay(setup, batch=micro, direct=True)
    assert record.peaks(micro) == literal.peaks(micro)
    assert record.end_bytes(micro) == record.static_bytes(micro)


def test_more_devices_of_experts_never_hold_more() -> None:
    """Where tokens are spread evenly; and the more uneven they are, the more the worst device holds."""
    peaks = [replay(spread({**ROW, "expert": count})).peak_bytes(2) for count in (2, 4, 8)]
    assert peaks == sorted(peaks, reverse=True)
    setup = spread({**ROW, "expert": 8})
    uneven = [replay(setup._replace(expert_imbalance=load)).peak_bytes(2) for load in (1.0, 1.5, 2.0, 4.0)]
    assert uneven == sorted(set(uneven))


MODEL = {
    "name": "small",
    "family": "mixtral",
    "layers": 8,
    "hidden_size": 128,
    "attention_heads": 8,
    "key_value_heads": 4,
    "intermediate_size": 256,
    "vocabulary_size": 1000,
    "max_positions": 2048,
    "experts": {"count": 8, "active": 2},
}


def job_of(**keys: Any) -> Any:
    """A job of a small mixture of experts under Megatron."""
    base = {
        "model": MODEL,
        "gpu": {"name": "card", "memory": "8 GiB", "bf16": True, "flash_attention": True},
        "sequence_length": 512,
        "micro_batch_size": 1,
        "activation_checkpointing": "none",
        "runtime": "megatron",
    }
    return build_job({**base, **keys})


def test_a_product_of_all_ways_to_split() -> None:
    parallel = {"tensor": 2, "sequence_parallel": True, "pipeline": 2, "context": 2, "expert": 4, "data": 4}
    shared = {**parallel, "sharding": DISTRIBUTED_OPTIMIZER}
    result = answer(job_of(parallel=shared, gradient_accumulation_steps=4, expert_imbalance=1.5))
    echoed = result.to_dict()["job"]
    assert echoed["parallel"]["expert"] == 4
    assert echoed["expert_imbalance"] == 1.5
    again = answer(build_job(echoed))
    assert again.peak == result.peak
    assert again.components == result.components
    assert again.stages == result.stages


@pytest.mark.parametrize("key", ["tensor", "pipeline", "context", "expert", "data"])
def test_one_of_each_is_the_plain_answer(key: str) -> None:
    assert answer(job_of(parallel={key: 1})).peak == answer(job_of()).peak


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--expert 3 --gpus 3", "parallel.expert"),
        ("--expert 8 --gpus 4", "parallel.expert"),
        ("--tensor 2", "sequence"),
        ("--expert 2 --gpus 2 --sharding zero1", "sharding"),
        ("--expert 2 --gpus 2 --runtime transformers", "parallel.expert"),
    ],
)
def test_what_does_not_go_with_experts_is_refused(options: str, word: str) -> None:
    named = [] if "--runtime" in options else ["--runtime", "megatron"]
    ran = run("fit", "--model", "mixtral-8x7b", "--gpu", "h100", *named, *options.split())
    assert ran.code == 2
    assert word in ran.err
