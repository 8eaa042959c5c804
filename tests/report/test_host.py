"""The memory of the host is in every format that has words."""

from __future__ import annotations

from tests.cli.running import run

JOB = ("--model", "gpt2", "--gpu", "a100-40gb", "--micro-batch", "4", "--checkpointing", "none")


def test_offloaded_activations_are_said() -> None:
    away = ("fit", *JOB, "--offload", "activations")
    found = run(*away, "--format", "json").document["host"]
    assert found["states_bytes"] == 0
    assert found["node_bytes"] == found["pinned_bytes"]
    assert found["to_host_bytes"] == found["to_device_bytes"] > found["saved_bytes"]  # once in each micro-step
    assert 0 < found["saved_bytes"] <= found["pinned_bytes"] < 2 * found["saved_bytes"]
    assert "GiB of pinned memory" in " ".join(run(*away, "--details").out.split())
    assert "GiB of pinned memory" in run(*away, "--format", "markdown").out
    assert run(*away, "--print", "host.pinned_bytes").out == f"{found['pinned_bytes']}\n"


def test_without_offloading_there_is_nothing_on_the_host() -> None:
    assert run("fit", *JOB, "--format", "json").document["host"] is None
    assert "pinned" not in run("fit", *JOB).out
