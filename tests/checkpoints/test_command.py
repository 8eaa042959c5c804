"""`vramplan checkpoints`: what it prints is what `fit` computes, in every format."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.answers import answer
from tests.cli.draws import jobs
from tests.cli.running import TINY, VALIDATORS, run
from vramplan.answers.placement import placements_of
from vramplan.job import build_job
from vramplan.planner.checkpoints import spelled
from vramplan.report.checkpoints import picture
from vramplan.results.placement import Strategy

GOLDEN = Path(__file__).parents[1] / "report" / "golden"
JOB = ("-m", "gpt2", "-g", "t4", "--micro-batch", "16", "--seq", "512")


def answered(*words: str) -> Any:
    ran = run("checkpoints", *words, "--format", "json")
    assert ran.err == ""
    VALIDATORS["checkpoints"].validate(ran.document)
    return ran.document


def row(document: Any, name: str) -> Any:
    (found,) = (row for row in document["strategies"] if row["name"] == name)
    return found


SHARDED = ("-m", "gpt2", "-g", "t4", "--micro-batch", "4", "--seq", "512", "--data-parallel", "4", "--sharding")


@pytest.mark.sweep(6)
@pytest.mark.parametrize("words", [JOB, *((*SHARDED, kind) for kind in ("ddp", "fsdp", "zero1", "zero2", "zero3"))])
def test_every_strategy_has_the_peak_that_fit_gives_it(words: tuple[str, ...]) -> None:
    document = answered(*words)
    for strategy in document["strategies"]:
        name = strategy["name"]
        if name in ("optimal", "smallest"):
            name = spelled((part["first"], part["last"]) for part in strategy["checkpoints"])
        fit = run("fit", *words, "--checkpointing", name, "--format", "json").document
        assert strategy["allocated_bytes"] == fit["peak"]["allocated_bytes"]
        assert strategy["checkpoints"] == fit["checkpoints"]
        own = next(row for row in fit["alternatives"] if row["activation_checkpointing"] == name)
        assert strategy["recomputed_fraction"] == own["recomputed_fraction"]


def test_without_a_budget_the_optimal_placement_is_that_of_fit() -> None:
    document = answered(*JOB)
    fit = run("fit", *JOB, "--checkpointing", "optimal", "--allocator", "estimate", "--format", "json").document
    assert row(document, "optimal")["checkpoints"] == fit["checkpoints"]
    assert fit["verdict"] == "fits"


def test_its_flags_are_read_back_by_fit() -> None:
    ran = run("checkpoints", *JOB, "--print", "flags")
    words = ran.out.replace("'", "").split()
    fit = run("fit", "-m", "gpt2", "-g", "t4", "--seq", "512", *words, "--format", "json").document
    assert fit["peak"]["allocated_bytes"] == row(answered(*JOB), "optimal")["allocated_bytes"]


@pytest.mark.sweep
def test_the_curve_is_every_k() -> None:
    document = answered(*JOB)
    assert [point["blocks_per_segment"] for point in document["curve"]] == list(range(1, 13))
    for point in document["curve"][::5]:
        name = f"every:{point['blocks_per_segment']}"
        fit = run("fit", *JOB, "--checkpointing", name, "--format", "json").document
        assert point["allocated_bytes"] == fit["peak"]["allocated_bytes"]
    lowest = min(document["curve"], key=lambda point: point["allocated_bytes"])
    assert document["best_blocks_per_segment"] == lowest["blocks_per_segment"]


@pytest.mark.closed_form
def test_the_textbook_beside_the_curve() -> None:
    """k + L/k with L = 12: 13 at both ends, 7 at k = 4 and 3; k = sqrt(12) rounds to 3."""
    document = answered(*JOB)
    units = {point["segments"]: point["textbook_units"] for point in document["curve"]}
    assert (units[12], units[6], units[4], units[3], units[1]) == (13, 8, 7, 7, 13)
    assert document["textbook_segments"] == 3
    none, block = row(document, "none")["allocated_bytes"], document["stored_block_bytes"]
    four = next(point for point in document["curve"] if point["segments"] == 4)
    assert four["textbook_bytes"] == none - 12 * block + 7 * block


@pytest.mark.sweep(12)
@settings(deadline=None, max_examples=13)
@given(jobs(), st.integers(0, 100))
@example(
    described={
        "model": {
            "name": "drawn",
            "family": "gpt2",
            "layers": 5,
            "hidden_size": 32,
            "attention_heads": 2,
            "vocabulary_size": 1000,
            "max_positions": 512,
        },
        "gpu": {"name": "drawn", "memory": "610 MiB"},
        "sequence_length": 28,
        "precision": "mixed-fp16",
        "optimizer": "adamw",
        "attention": "eager",
        "hold_outputs": False,
        "runtime": "transformers",
        "parallel": {"data": 2},
        "reserve": "0 GiB",
    },
    share=0,
)
def test_no_strategy_within_the_budget_recomputes_less(described: dict[str, Any], share: int) -> None:
    described.pop("activation_checkpointing", None)
    job = build_job(described)
    first = placements_of(job)
    low, high = first.smallest_peak_bytes, first.strategies[0].allocated_bytes
    result = placements_of(job, low + (high - low) * share // 100)
    best = next(row for row in result.strategies if row.name == "optimal")
    assert result.verdict == "fits"
    assert best.allocated_bytes <= result.budget_bytes
    assert all(best.recomputed_flops <= row.recomputed_flops for row in result.strategies if row.fits)
    for point in result.curve:
        if point.allocated_bytes <= result.budget_bytes:
            assert best.recomputed_fraction <= point.recomputed_fraction
    assert result.smallest_peak_bytes == min(row.allocated_bytes for row in (*result.strategies, *first.strategies))
    below = placements_of(job, low - 1)
    assert below.verdict == "does-not-fit"
    assert below.flags is None
    assert not any(row.fits for row in below.strategies)


def test_a_budget_too_small_is_a_no() -> None:
    ran = run("checkpoints", *JOB, "--budget", "2 GiB", "--format", "json")
    assert ran.code == 3
    assert not row(ran.document, "optimal")["fits"]
    assert row(ran.document, "optimal")["allocated_bytes"] == ran.document["smallest_peak_bytes"]
    assert ran.document["flags"] is None
    text = run("checkpoints", *JOB, "--budget", "2 GiB")
    assert (text.code, text.out.split("  ")[0]) == (3, "NO PLACEMENT FITS")


def test_a_budget_stands_for_the_card_where_none_is_named() -> None:
    document = answered("-m", "gpt2", "--micro-batch", "4", "--budget", "10 GiB")
    assert document["job"]["gpu"]["memory"] == f"{10 * 2**30} B"
    assert document["budget_bytes"] == 10 * 2**30


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("-m", "gpt2"), "--gpu or --budget"),
        (("-m", "gpt2", "--budget", "12"), "--budget"),
        (("-m", "gpt2", "--budget", "many GiB"), "--budget"),
        (("-g", "t4"), "--model"),
        (("-m", "gpt2", "-g", "t4", "--checkpointing", "every:0"), "activation_checkpointing"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], key: str) -> None:
    ran = run("checkpoints", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {key}: ")


def test_the_job_s_own_strategy_is_listed_too() -> None:
    document = answered(*JOB, "--checkpointing", "layers:[[2,5]]")
    assert row(document, "layers:[[2,5]]")["checkpoints"] == [{"first": 2, "last": 5}]


def test_the_picture() -> None:
    checkpoints = ((0, 0), (2, 4), (5, 6))
    strategy = Strategy("optimal", "", checkpoints, 0, True, 0, 0.0)
    assert picture(strategy, (8,)) == "|#[=][]#"


def test_one_block_has_one_placement_and_none() -> None:
    job = build_job({"model": {**TINY, "layers": 1}, "gpu": {"name": "x", "memory": "2 GiB"}, "micro_batch_size": 2})
    result = placements_of(job)
    assert [point.segments for point in result.curve] == [1]
    assert {row.checkpoints for row in result.strategies} <= {(), ((0, 0),)}
    assert answer(job).peak.allocated_bytes == result.strategies[0].allocated_bytes


# Formats


def rendered(output_format: str, *more: str) -> str:
    return run("checkpoints", *JOB, "--budget", "7 GiB", *more, "--format", output_format).out


@pytest.mark.snapshot
@pytest.mark.parametrize(("output_format", "suffix"), [("text", "txt"), ("markdown", "md"), ("csv", "csv")])
def test_the_forms_are_as_they_were(output_format: str, suffix: str) -> None:
    golden = GOLDEN / f"checkpoints.{suffix}"
    text = rendered(output_format)
    if os.environ.get("VRAMPLAN_UPDATE_GOLDEN"):
        golden.write_text(text, "utf-8")
    assert text == golden.read_text("utf-8")


def test_the_forms_agree() -> None:
    document = json.loads(rendered("json"))
    text, table = rendered("text"), rendered("markdown")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(rendered("csv")))}
    for strategy in document["strategies"]:
        gib = f"{-(-strategy['allocated_bytes'] * 100 // 2**30) / 100:.2f}"
        assert re.search(rf"^  [ >!]  {strategy['name']} +{len(strategy['checkpoints'])} +{gib} ", text, re.MULTILINE)
        assert f"{strategy['name']}** | " in table or f"| {strategy['name']} | " in table
        assert f"| {len(strategy['checkpoints'])} | {gib} | " in table
        assert rows[strategy["name"]]["allocated_bytes"] == str(strategy["allocated_bytes"])
    assert json.loads(rendered("json")) == document


@pytest.mark.sweep(6)
@pytest.mark.parametrize("columns", [40, 60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    from vramplan.report.checkpoints import text
    from vramplan.report.lines import to_plain

    job = build_job({"model": "gpt2-xl", "gpu": "v100", "micro_batch_size": 4})
    lines = to_plain(text(placements_of(job), width=columns)).splitlines()
    assert max(map(len, lines)) <= columns
