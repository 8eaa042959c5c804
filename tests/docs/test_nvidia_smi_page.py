"""The tables of docs/nvidia-smi.md are computed again: the steps of its run, and the published contexts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vramplan import fit
from vramplan.catalog.runtimes import find_runtime, find_runtime_profile
from vramplan.results import FitResult

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "nvidia-smi.md").read_text("utf-8")
BLOCK = 512
PARAMETERS, TENSORS = 109_514_298, 202  # of bert-base-uncased with its head, as transformers counts them


def table(heading: str) -> list[list[str]]:
    """The cells of the last table below a heading, without its head."""
    section = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, heading
    lines = [line for line in section[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.fixture(scope="module")
def run() -> FitResult:
    return fit(
        model="bert-base-uncased",
        gpu="rtx-4090",
        micro_batch_size=8,
        gradient_accumulation_steps=1,
        activation_checkpointing="none",
    )


@pytest.mark.closed_form
def test_each_step_from_requested_to_device_is_that_of_the_run(run: FitResult) -> None:
    parts = {part.name: part.bytes for part in (*run.components, *run.overheads)}
    steps = {cells[0]: int(cells[1].replace(",", "")) for cells in table("One run, step by step")}
    assert steps == {
        "requested for the weights": PARAMETERS * 4,
        "allocated for the weights": parts["weights"],
        "requested for the optimizer": PARAMETERS * 8 + TENSORS * 4,
        "allocated for the optimizer": parts["optimizer"],
        "allocated": run.peak.allocated_bytes,
        "libraries": parts["libraries"],
        "reserved": run.peak.reserved_bytes,
        "device": run.peak.device_bytes,
    }
    assert run.total_parameters == PARAMETERS
    assert parts["optimizer"] == 2 * parts["weights"] + TENSORS * BLOCK
    assert 0 <= parts["weights"] - PARAMETERS * 4 < TENSORS * BLOCK
    assert run.peak.device_bytes == run.peak.reserved_bytes + parts["context"]


def test_the_contexts_of_the_page_are_those_of_the_profile() -> None:
    profile = find_runtime_profile("pytorch")
    shown = {f"context_{one[0]}_{one[1]}_{one[2]}": one[3] for one in table("The CUDA context")}
    known = {
        key: field.text for key, field in profile.fields.items() if key.startswith("context_") and key.count("_") == 3
    }
    assert shown == known
    assert all(profile.fields[key].source in profile.sources for key in known)


def test_the_workspaces_of_the_page_are_those_of_the_profile() -> None:
    runtime, _ = find_runtime("transformers")
    twice = {cells[0]: cells[2] for cells in table("Workspaces of libraries")}
    for name, architectures in (
        ("Hopper, Blackwell", ("hopper", "blackwell")),
        ("other NVIDIA cards", ("ada", "volta")),
    ):
        for architecture in architectures:
            one = runtime.blas_workspace_on(architecture)
            assert one is not None
            assert f"{2 * one / 2**20:.2f} MiB" == twice[name]
