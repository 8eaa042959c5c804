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


def test_without_it_the_answer_says_what_a_node_must_have() -> None:
    """Of what is saved and of the states together, for all its devices."""
    zero = ("--gpus", "4", "--sharding", "zero2", "--offload", "optimizer,activations", "--micro-batch", "2")
    words = (*JOB[:5], "--steps", "1", "--checkpointing", "none", *zero, "--format", "json")
    free = run(*words).document
    host = free["host"]
    assert host["saved_bytes"] > 0 < host["states_bytes"]
    assert host["node_bytes"] >= 4 * (host["saved_bytes"] + host["states_bytes"])
    said = [text for text in free["warnings"] if "--host-memory" in text]
    assert len(said) == 1
    assert f"{-(-host['node_bytes'] * 100 // 2**30) / 100:.2f} GiB" in said[0]
    enough, little = (run(*words, "--host-memory", f"{host['node_bytes'] - less} B").document for less in (0, 1))
    assert not any("host" in text for text in enough["warnings"])
    assert (enough["verdict"], little["verdict"]) == ("fits", "does-not-fit")
    assert any("does not fit on the host" in text for text in little["warnings"])


def test_a_strategy_that_the_host_cannot_hold_is_no_fit() -> None:
    one = found("--checkpointing", "none", "--micro-batch", "1")["host"]["node_bytes"]
    less = found("--host-memory", f"{one - 1} B")
    verdicts = {rung["activation_checkpointing"]: rung["verdict"] for rung in less["alternatives"]}
    assert verdicts["none"] == "does-not-fit"
    assert verdicts[less["job"]["activation_checkpointing"]] == "fits"
    assert less["host"]["node_bytes"] < one


@pytest.mark.sweep
def test_remedies_fit_on_the_host_too() -> None:
    one = found("--checkpointing", "none", "--micro-batch", "1", "--steps", "32")["host"]["node_bytes"]
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
