"""`vramplan explain --time`: its sums are those of `fit`, in every format."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.cli.running import run
from vramplan.report.json import schema

PLAIN = ("explain", "--time", "-m", "gpt2", "-g", "a100-80gb", "--micro-batch", "4", "--seq", "512")
SHARED = (
    "explain",
    "--time",
    "-m",
    "llama-3.2-1b",
    "-g",
    "h100",
    "--gpus",
    "16",
    "--sharding",
    "fsdp",
    "--checkpointing",
    "full",
)


def answered(*words: str) -> dict[str, Any]:
    ran = run(*words, "--format", "json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


@pytest.mark.closed_form
@pytest.mark.parametrize("words", [PLAIN, SHARED], ids=["one device", "shared"])
def test_kernels_and_blocks_sum_to_the_parts_of_the_step(words: tuple[str, ...]) -> None:
    found = answered(*words)
    jsonschema.validate(found, schema("explain-time"))
    time, steps = found["time"], found["micro_batches"]
    parts = sum(time["shares"][part] for part in ("products", "attention", "bytes"))
    kernels = sum(row["seconds"] for row in found["kernels"]) * steps / time["step_seconds"]
    assert kernels == pytest.approx(parts, abs=1e-4)
    blocks = sum(row["share"] for row in found["blocks"])
    assert blocks == pytest.approx(kernels)
    flops = sum(row["flops"] for row in found["kernels"]) * steps * time["devices"]
    assert flops >= time["hardware_flops"] >= time["model_flops"]
    assert sum(time["shares"].values()) == pytest.approx(1, abs=1e-4)


@pytest.mark.closed_form
def test_no_operator_is_above_its_roof() -> None:
    found = answered(*PLAIN)
    for row in found["kernels"]:
        roof = found["product_flop_per_s"]
        if row["kind"] == "bytes":
            assert row["flops"] == 0
            assert row["bytes"] / row["seconds"] <= found["bytes_per_s"] * 1.001
        elif row["kind"] == "product":
            assert row["flop_per_s"] <= roof * 1.001


@pytest.mark.contract
def test_shared_devices_list_their_collectives() -> None:
    found = answered(*SHARED)
    assert {(row["kind"], row["when"]) for row in found["collectives"]} == {
        ("all-gather", "forward"),
        ("all-gather", "backward"),
        ("reduce-scatter", "backward"),
    }


@pytest.mark.contract
@pytest.mark.parametrize("format", ["text", "csv", "markdown", "yaml"])
def test_every_format_has_the_operators(format: str) -> None:
    ran = run(*PLAIN, "--format", format)
    assert ran.code == 0
    assert "addmm" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120 or format != "text"


@pytest.mark.contract
def test_what_cannot_be_asked_is_refused() -> None:
    assert "leave out --tensor" in run(*PLAIN, "--block", "1").err
    unknown = run("explain", "--time", "-m", "gpt2", "--gpu-memory", "24 GiB")
    assert unknown.code == 2
