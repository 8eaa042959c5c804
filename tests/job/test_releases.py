"""What a release of PyTorch changes, and the releases that the notes of a measured case name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan.answers.fit import answer
from vramplan.job import build_job, read_job_file
from vramplan.results import FitResult
from vramplan.values.job import Job

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


def read(folder: Path, **keys: Any) -> Job:
    file = folder / "cases.json"
    file.write_text(json.dumps({"version": 1, "jobs": [{"name": "one", **RUN, **keys}]}), "utf-8")
    (entry,) = read_job_file(file)
    assert isinstance(entry.job, Job), entry.problems
    return entry.job


def case(folder: Path, notes: str, **keys: Any) -> Job:
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


@pytest.mark.parametrize(
    ("notes", "version"),
    [
        ("Default batch 8; PyTorch 1.6. Near the limit.", "1.6"),
        ("FlashAttention-2, PyTorch 2.0, CUDA 11.8.", "2.0"),
        ("torch==1.13.1 on one card", "1.13"),
        ("Run in January 2022 (nvidia-smi on the page).", "1.10"),
        ("Run in March 2022.", "1.11"),
        ("Run in June 2026.", None),
        ("Run in June 2017.", None),
        ("PyTorch as it was then.", None),
    ],
)
def test_a_release_in_the_notes_of_a_measured_case_counts(tmp_path: Path, notes: str, version: str | None) -> None:
    job = case(tmp_path, notes)
    assert job.pytorch_version == version
    told = {one.key: one for one in job.assumptions}
    assert ("pytorch_version" in told) == (version is not None)


def test_a_key_wins_over_the_notes(tmp_path: Path) -> None:
    assert case(tmp_path, "PyTorch 1.6", pytorch_version="2.1").pytorch_version == "2.1"


def test_bitsandbytes_counts_where_it_multiplies(tmp_path: Path) -> None:
    notes = "bitsandbytes of that time (0.41.1) keeps the input of every 4-bit product."
    llama = {
        "family": "llama",
        "layers": 2,
        "hidden_size": 256,
        "attention_heads": 8,
        "intermediate_size": 512,
        "vocabulary_size": 1000,
        "max_positions": 512,
    }
    quantized = {"model": llama, "gpu": "a100", "precision": "pure-bf16", "adapter": {"kind": "lora", "rank": 8}}
    assert case(tmp_path, notes, **quantized, quantization="nf4").bitsandbytes == "0.41.1"
    assert case(tmp_path, notes).bitsandbytes is None
    newer = "bitsandbytes 9.9.9"
    assert case(tmp_path, newer, **quantized, quantization="nf4").bitsandbytes is None


def test_other_gpus_and_jobs_without_a_measurement_have_no_release(tmp_path: Path) -> None:
    assert case(tmp_path, "PyTorch 1.6", gpu="mi300x").pytorch_version is None
    assert read(tmp_path, notes="PyTorch 1.6").pytorch_version is None
