"""Tensor parallelism by a plan: what one device has of a model with experts."""

from __future__ import annotations

import pytest

from tests.cli.running import fit

pytestmark = pytest.mark.closed_form


def weights(model: str, *words: object) -> int:
    """Bytes of the weights on one device, in bf16."""
    run = (
        "--runtime",
        "transformers",
        "--precision",
        "pure-bf16",
        "--seq",
        64,
        "--micro-batch",
        1,
        "--checkpointing",
        "full",
    )
    parts = fit("--model", model, "--gpu", "b300", *run, *words)["components"]
    return int(next(part["bytes"] for part in parts if part["name"] == "weights"))


@pytest.mark.plain
def test_each_device_has_some_columns_of_every_expert() -> None:
    layers, hidden, inner, experts = 32, 4096, 14336, 8
    whole = weights("mixtral-8x7b")
    part = weights("mixtral-8x7b", "--tensor", 2, "--gpus", 2, "--sharding", "none")
    attention = layers * 2 * (hidden * hidden + hidden * 1024)
    split = 2 * (layers * experts * 3 * hidden * inner + attention)
    assert whole - part == pytest.approx(split / 2, rel=1e-6)
