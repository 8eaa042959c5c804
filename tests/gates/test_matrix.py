"""A matrix stands for the jobs that are written out, and what is wrong with it is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.running import refused, run

pytestmark = pytest.mark.contract

PLAIN: dict[str, Any] = {"name": "a", "model": "gpt2", "sequence_length": 128, "gradient_accumulation_steps": 1}


def file_of(folder: Path, *jobs: dict[str, Any], name: str = "jobs.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump({"version": 1, "jobs": list(jobs)}, sort_keys=False), "utf-8")
    return path


def results(path: Path) -> list[dict[str, Any]]:
    _, out, _ = run("check", path, "--format", "json")
    found: list[dict[str, Any]] = json.loads(out)["results"]
    return found


AXES = st.fixed_dictionaries(
    {"gpu": st.lists(st.sampled_from(["t4", "v100", "h100-80gb"]), min_size=1, max_size=2, unique=True)},
    optional={
        "micro_batch_size": st.lists(st.integers(1, 9), min_size=1, max_size=2, unique=True),
        "activation_checkpointing": st.lists(st.sampled_from(["none", "full"]), min_size=1, unique=True),
        "parallel": st.fixed_dictionaries({"data": st.lists(st.sampled_from([1, 2, 8]), min_size=1, unique=True)}),
    },
)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(AXES)
def test_a_matrix_is_the_jobs_written_out(tmp_path: Path, axes: dict[str, Any]) -> None:
    written: list[dict[str, Any]] = [{}]
    for key, values in axes.items():
        inner = values["data"] if key == "parallel" else values
        each = [{"parallel": {"data": one}} if key == "parallel" else {key: one} for one in inner]
        written = [{**job, **more} for job in written for more in each]
    by_hand = [{**PLAIN, "name": f"job {place}", **job} for place, job in enumerate(written)]
    short = results(file_of(tmp_path, {**PLAIN, "matrix": axes}))
    long = results(file_of(tmp_path, *by_hand, name="long.yaml"))
    assert len({one["name"] for one in short}) == len(short) == len(long)
    for one, other in zip(short, long, strict=True):
        assert (one["verdict"], one["peak"]) == (other["verdict"], other["peak"])


def test_names_say_the_values_and_exclusions_leave_out(tmp_path: Path) -> None:
    matrix = {"gpu": ["t4", "v100"], "parallel.data": [1, 2], "exclude": [{"gpu": "t4", "parallel": {"data": 2}}]}
    names = [one["name"] for one in results(file_of(tmp_path, {**PLAIN, "matrix": matrix}))]
    assert names == ["a (gpu=t4, data=1)", "a (gpu=v100, data=1)", "a (gpu=v100, data=2)"]


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ({"gpus": ["t4"]}, "jobs.0.matrix.gpus: unknown key (did you mean gpu?)"),
        ({"gpu": []}, "jobs.0.matrix.gpu: is an empty list"),
        ({"gpu": "t4"}, "jobs.0.matrix.gpu: expected a list of values"),
        ({"gpu": ["t4"], "model": ["gpt2"]}, "jobs.0.matrix.model: stands in the job and in its matrix"),
        ({"gpu": ["t4"], "exclude": [{"gpu": "v100"}]}, "no combination of the matrix is excluded by it"),
        ({"gpu": ["t4"], "exclude": [{"gpu": "t4"}]}, "every combination is excluded"),
        ({"gpu": ["t4"], "exclude": [{"micro_batch_size": 1}]}, "is no key of the matrix"),
        ({}, "jobs.0.matrix: has no keys"),
        ({"gpu": ["t4"], "micro_batch_size": list(range(1, 10_002))}, "10,001 combinations are too many"),
        ({"dropout": [0.1], "seed": [1]}, "jobs.0.matrix.seed: unknown key"),
    ],
)
def test_a_wrong_matrix_is_an_error_with_its_place(tmp_path: Path, matrix: dict[str, Any], said: str) -> None:
    path = file_of(tmp_path, {**PLAIN, "matrix": matrix})
    err = refused("check", path).err
    assert said in err
    assert f"{path}:" in err


def test_a_huge_matrix_is_refused_before_it_is_made(tmp_path: Path) -> None:
    many = list(range(1, 5_001))
    matrix = {"micro_batch_size": many, "sequence_length": many, "gradient_accumulation_steps": many}
    job = {"name": "a", "model": "gpt2", "gpu": "t4", "matrix": matrix}
    assert "125,000,000,000 combinations are too many" in refused("check", file_of(tmp_path, job)).err
