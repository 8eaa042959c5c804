"""INVARIANTS of a search where something is on the host: what its memory cannot hold is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run

pytestmark = pytest.mark.closed_form

JOB = ("fit", "--model", "gpt2", "--gpu", "a100-40gb", "--global-batch", "32", "--offload", "activations")


def found(*words: str) -> dict[str, Any]:
    return run(*JOB, *words, "--format", "json").document


def test_less_memory_of_the_host_means_smaller_micro_batches() -> None:
    free = found("--checkpointing", "none")
    need = free["host"]["node_bytes"]
    half = found("--checkpointing", "none", "--host-memory", f"{need // 2} B")
    assert free["job"]["micro_batch_size"] > half["job"]["micro_batch_size"]
    assert half["verdict"] == "fits"
    assert half["host"]["node_bytes"] <= need // 2
    rung = next(one for one in half["alternatives"] if one["activation_checkpointing"] == "none")
    micro = str(rung["largest_micro_batch_size"] + 1)
    alone = (*JOB[:5], *JOB[-2:], "--checkpointing", "none", "--micro-batch", micro, "--steps", "1")
    beyond = run(*alone, "--format", "json").document
    assert beyond["host"]["node_bytes"] > need // 2


def test_a_strategy_that_the_host_cannot_hold_is_no_fit() -> None:
    one = found("--checkpointing", "none", "--micro-batch", "1")["host"]["node_bytes"]
    less = found("--host-memory", f"{one - 1} B")
    verdicts = {rung["activation_checkpointing"]: rung["verdict"] for rung in less["alternatives"]}
    assert verdicts["none"] == "does-not-fit"
    assert verdicts[less["job"]["activation_checkpointing"]] == "fits"
    assert less["host"]["node_bytes"] < one


def test_remedies_fit_on_the_host_too() -> None:
    one = found("--checkpointing", "none", "--micro-batch", "1")["host"]["node_bytes"]
    tight = run(
        *JOB[:5],
        "--micro-batch",
        "4",
        "--steps",
        "8",
        "--checkpointing",
        "none",
        *JOB[-2:],
        "--format",
        "json",
        "--host-memory",
        f"{one} B",
    ).document
    assert tight["verdict"] == "does-not-fit"
    smaller = [remedy["change"] for remedy in tight["remedies"] if "micro_batch_size" in remedy["change"]]
    assert smaller == [{"micro_batch_size": 1, "gradient_accumulation_steps": 32}]
