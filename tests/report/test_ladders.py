"""Steps of ladders: what one switch changes, measured and predicted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.running import run, valid, write_jobs
from vramplan.results.listings.ladders import rounding_bytes

GIB = 2**30
CASE: dict[str, Any] = {
    "model": "gpt2",
    "gpu": "a100",
    "sequence_length": 1024,
    "gradient_accumulation_steps": 1,
    "precision": "fp32",
    "ladder": "gpt2",
    "use": ["peak"],
}


def case(name: str, measured_gib: float, **keys: Any) -> dict[str, Any]:
    measured = {"peak_bytes": int(measured_gib * GIB), "metric": "allocated"}
    return {**CASE, "name": name, "measured": measured, **keys}


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("size", "rounding"),
    [
        (35 * GIB, GIB),
        (88476326298, GIB / 10),  # 82.4 GiB
        (22440000000, 1e7),
        (5050000000, 1e7),
        (12345678901, 0.0),
    ],
)
def test_what_a_printed_figure_was_rounded_to(size: int, rounding: float) -> None:
    assert rounding_bytes(size) == rounding


def test_a_step_is_between_cases_that_differ_in_one_switch(tmp_path: Any) -> None:
    cases = [
        case("small", 8.01, micro_batch_size=4),
        case("large", 14.02, micro_batch_size=8),
        case("large and full", 7.03, micro_batch_size=8, activation_checkpointing="full"),
        case("of another ladder", 7.03, micro_batch_size=2, ladder="other"),
    ]
    ran = run("validate", write_jobs(tmp_path / "cases.json", *cases), "--format", "json")
    ladders = valid("validate", ran.document)["summary"]["ladders"]
    steps = {(step["from"], step["to"]): step for step in ladders["steps"]}
    assert set(steps) == {("small", "large"), ("large", "large and full")}
    step = steps["small", "large"]
    assert step["switch"] == "micro_batch_size"
    assert step["measured_bytes"] == int(14.02 * GIB) - int(8.01 * GIB)
    assert step["relative_error"] == (step["predicted_bytes"] - step["measured_bytes"]) / step["measured_bytes"]
    assert (ladders["count"], ladders["right_in_sign"]) == (2, 2)


def test_a_step_that_is_smaller_than_its_rounding_is_not_judged(tmp_path: Any) -> None:
    cases = [case("one", 8, micro_batch_size=4), case("other", 11, micro_batch_size=8)]
    file = write_jobs(tmp_path / "cases.json", *cases)
    ladders = run("validate", file, "--format", "json").document["summary"]["ladders"]
    assert [step["judged"] for step in ladders["steps"]] == [False]
    assert ladders["count"] == 0
    text = run("validate", file).out
    assert "0 of 0 pairs go the right way; 1 too small to say" in text
