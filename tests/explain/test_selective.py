"""The derivation says what a selective checkpoint keeps, and adds up under every strategy and loss."""

from __future__ import annotations

import pytest

from tests.cli.running import ABLE, TINY, run
from vramplan.answers.explanation import explain
from vramplan.answers.placement import placements_of
from vramplan.answers.timeline import timeline
from vramplan.job import build_job
from vramplan.planner.decision import decide
from vramplan.results.explain import Explanation

JOB = {
    "model": TINY,
    "gpu": {"name": "small", "memory": "8 GiB", **ABLE},
    "sequence_length": 64,
    "micro_batch_size": 2,
    "global_batch_size": 4,
}
VARIANTS = [
    {"activation_checkpointing": "selective", "attention": "eager"},
    {"activation_checkpointing": "selective"},
    {"activation_checkpointing": "selective-op"},
    {"activation_checkpointing": "selective-op", "every_second_matmul": True},
    {"activation_checkpointing": "selective-layer:2"},
    {"activation_checkpointing": "selective-op", "loss": "fused"},
    {"activation_checkpointing": "none", "loss": "chunked:3"},
    {"activation_checkpointing": "optimal", "loss": "fused"},
]


def explained(**changes: object) -> Explanation:
    return explain(build_job({**JOB, **changes}))


@pytest.mark.sweep(8)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_parts_add_up(changes: dict[str, object]) -> None:
    answer = explained(**changes)
    total = sum(tensor.total_bytes for tensor in answer.peak.alive)
    assert total == sum(size for _, size in answer.totals.components) == answer.fit.peak.allocated_bytes
    assert answer.totals.saved_bytes == answer.fit.peak.saved_bytes


def test_kept_results_are_said_to_be_kept() -> None:
    job = ("-m", "gpt2", "-g", "a100", "--micro-batch", "2", "--checkpointing", "selective-op")
    ran = run("explain", *job, "--block", "1")
    assert "keeps kept = block.1.attn.c_attn.addmm" in ran.out
    assert "kept by its checkpoint, nothing new" in ran.out
    assert "results of matrix products and of fused attention are kept" in run(
        "fit", "-m", "gpt2", "-g", "a100", "--checkpointing", "selective-op", "--details"
    ).out.replace("\n               ", " ")


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_the_timeline_reaches_the_same_peak(changes: dict[str, object]) -> None:
    answer = timeline(decide(build_job({**JOB, **changes})))
    assert max(sample.allocated_bytes for sample in answer.history.samples) == answer.fit.peak.allocated_bytes


@pytest.mark.sweep(8)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_checkpoints_compares_the_strategy_of_the_job(changes: dict[str, object]) -> None:
    job = build_job({**JOB, **changes})
    name = str(changes["activation_checkpointing"])
    rows = {row.name: row for row in placements_of(job, None).strategies}
    fit = explained(**changes).fit
    if name in ("selective", "selective-op", "selective-layer:2"):
        assert rows[name].allocated_bytes == fit.peak.allocated_bytes
        assert rows[name].checkpoints == fit.checkpoints
