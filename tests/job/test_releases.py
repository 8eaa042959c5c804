"""What a release of PyTorch changes, and that words in a case change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.answers import answer
from vramplan.errors import InputError
from vramplan.job import build_job, read_job_file
from vramplan.results import FitResult
from vramplan.values.job import ResolvedJob

LAYERS, HEADS, SEQUENCE, MICRO = 4, 8, 256, 2
MODEL = {
    "family": "bert",
    "task": "cls",
    "layers": LAYERS,
    "hidden_size": 256,
    "attention_heads": HEADS,
    "intermediate_size": 1024,
    "vocabulary_size": 1000,
    "max_positions": 512,
}
RUN = {
    "model": MODEL,
    "gpu": "v100",
    "precision": "fp32",
    "optimizer": "sgd",
    "attention": "eager",
    "sequence_length": SEQUENCE,
    "micro_batch_size": MICRO,
    "gradient_accumulation_steps": 1,
    "activation_checkpointing": "none",
}


def run(**keys: Any) -> FitResult:
    return answer(build_job({**RUN, **keys}))


def read(folder: Path, **keys: Any) -> ResolvedJob:
    file = folder / "cases.json"
    file.write_text(json.dumps({"version": 1, "jobs": [{"name": "one", **RUN, **keys}]}), "utf-8")
    (entry,) = read_job_file(file)
    assert isinstance(entry.job, ResolvedJob), entry.problems
    return entry.job


def case(folder: Path, notes: str, **keys: Any) -> ResolvedJob:
    return read(folder, measured={"peak_bytes": 1, "metric": "device"}, notes=notes, **keys)


@pytest.mark.closed_form
def test_a_softmax_kept_its_input_before_1_11() -> None:
    scores, logits = LAYERS * MICRO * HEADS * SEQUENCE**2 * 4, 512  # the loss has a softmax too
    old, new = (run(pytorch_version=version).peak.saved_bytes for version in ("1.10", "1.11"))
    assert old - new == scores + logits


@pytest.mark.closed_form
def test_gradients_stayed_as_zeros_before_2_0() -> None:
    old, new = (run(pytorch_version=version) for version in ("1.13", "2.0"))
    parts = {part.name: part.bytes for part in old.components}
    weights = parts["weights"]
    assert parts["gradients"] == weights
    assert old.peak.forward_bytes - new.peak.forward_bytes == weights


@pytest.mark.closed_form
@pytest.mark.parametrize(
    ("optimizer", "implementation", "twice"),
    [("adamw", "foreach", True), ("adam", "foreach", True), ("adamw", "fused", False), ("rmsprop", "foreach", False)],
)
def test_foreach_adam_made_denominators_beside_square_roots_before_2_1(
    optimizer: str, implementation: str, *, twice: bool
) -> None:
    keys = {"optimizer": optimizer, "optimizer_implementation": implementation}
    old, new = (run(pytorch_version=version, **keys) for version in ("2.0", "2.1"))
    weights = next(part.bytes for part in old.components if part.name == "weights")
    assert old.peak.step_bytes - new.peak.step_bytes == (weights if twice else 0)


def test_a_loop_that_zeroes_gradients_late_is_one_of_your_own() -> None:
    loop = {"runtime": "pytorch", "zero_grad": "before-backward"}
    assert run(**loop).peak.forward_bytes > run(runtime="pytorch").peak.forward_bytes
    old = [
        run(**{**loop, "zero_grad": word}, pytorch_version="1.13").peak for word in ("after-step", "before-backward")
    ]
    assert old[0] == old[1]  # they stay anyway
    for keys in (
        {"runtime": "transformers"},
        {"parallel": {"data": 2, "sharding": "zero2"}},
        {"optimizer_in_backward": True},
        {"parallel": {"data": 1, "tensor": 2}},
    ):
        with pytest.raises(InputError, match="zero_grad: before-backward"):
            build_job({**RUN, **loop, **keys})


@pytest.mark.parametrize("notes", ["Default batch 8; PyTorch 1.6.", "Run in January 2022 (nvidia-smi on the page)."])
def test_a_release_in_the_notes_of_a_case_is_no_key(tmp_path: Path, notes: str) -> None:
    told, plain = case(tmp_path, notes), read(tmp_path)
    assert told.pytorch_version is None
    assert answer(told).peak == answer(plain).peak
    assert case(tmp_path, notes, pytorch_version="1.10").pytorch_version == "1.10"
