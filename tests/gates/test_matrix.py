"""A matrix stands for the jobs that are written out, and what is wrong with it is said with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli.running import refused, run

pytestmark = pytest.mark.contract

PLAIN: dict[str, Any] = {"name": "a", "model": "gpt2", "sequence_length": 128, "gradient_accumulation_steps": 1}


ANSWER = ("verdict", "peak", "components", "recommended", "status", "exit_code", "reasons")


def file_of(
    folder: Path, *jobs: dict[str, Any], name: str = "jobs.yaml", defaults: dict[str, Any] | None = None
) -> Path:
    path = folder / name
    document = {"version": 1, "defaults": defaults or {}, "jobs": list(jobs)}
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
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
        "parallel": st.one_of(
            st.fixed_dictionaries({"data": st.lists(st.sampled_from([1, 2, 8]), min_size=1, unique=True)}),
            st.just([{"data": 2}, {"data": 4}]),
        ),
        "parallel.sharding": st.just(["ddp", "zero1"]),
    },
).filter(lambda axes: not ("parallel.sharding" in axes and isinstance(axes.get("parallel"), list)))
DEFAULTS = st.fixed_dictionaries(
    {},
    optional={
        "parallel": st.sampled_from([{"data": 2}, {"data": 2, "sharding": "zero1"}]),
        "micro_batch_size": st.just(3),
        "precision": st.just("mixed-fp16"),
    },
)


@pytest.mark.sweep(12)
@settings(max_examples=12)
@given(axes=AXES, defaults=DEFAULTS)
def test_a_matrix_is_the_jobs_written_out(
    axes: dict[str, Any], defaults: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("matrix")
    written: list[dict[str, Any]] = [{}]
    for key, values in axes.items():
        group, _, inner = key.rpartition(".")
        lists = values.items() if isinstance(values, dict) else [(inner, values)]
        group = key if isinstance(values, dict) else group
        for name, each in lists:
            written = [
                {**job, group: {**job.get(group, {}), name: one}} if group else {**job, name: one}
                for job in written
                for one in each
            ]
    by_hand = [{**PLAIN, "name": f"job {place}", **job} for place, job in enumerate(written)]
    short = results(file_of(folder, {**PLAIN, "matrix": axes}, defaults=defaults))
    long = results(file_of(folder, *by_hand, name="long.yaml", defaults=defaults))
    assert len({one["name"] for one in short}) == len(short) == len(long)
    for one, other in zip(short, long, strict=True):
        assert ("error" in one) == ("error" in other)
        assert {**one.get("job", {}), "name": ""} == {**other.get("job", {}), "name": ""}
        assert [one.get(key) for key in ANSWER] == [other.get(key) for key in ANSWER]


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
        ({"gpu": ["t4"], "exclude": [{"gpu": "v100"}]}, "excludes no combination of the matrix"),
        ({"gpu": ["t4"], "exclude": [{"gpu": "t4"}]}, "every combination is excluded"),
        ({"gpu": ["t4"], "exclude": [{"micro_batch_size": 1}]}, "is no key of the matrix"),
        ({"gpu": ["t4"], "exclude": [{"gpuu": "t4"}]}, "exclude.0.gpuu: is no key of the matrix (did you mean gpu?)"),
        ({"gpu": ["t4", "v100", "t4"]}, "'t4' stands in the list twice"),
        ({"gpu": ["t4"], "adapter.rank": [8]}, "adapter has no keys that a matrix could add to"),
        ({"gpu": ["t4"], "parallel": [{"data": 2}], "parallel.data": [4]}, "stands in the matrix twice"),
        ({}, "jobs.0.matrix: has no keys"),
        ({"gpu": ["t4"], "micro_batch_size": list(range(1, 10_002))}, "10,001 combinations are too many"),
        ({"dropout": [0.1], "seed": [1]}, "jobs.0.matrix.seed: unknown key"),
    ],
)
def test_a_wrong_matrix_is_an_error_with_its_place(tmp_path: Path, matrix: dict[str, Any], said: str) -> None:
    job = {**PLAIN, "adapter": ["lora"]} if "adapter.rank" in matrix else PLAIN
    path = file_of(tmp_path, {**job, "matrix": matrix})
    err = refused("check", path).err
    assert said in err
    assert f"{path}:" in err


def test_a_huge_matrix_is_refused_before_it_is_made(tmp_path: Path) -> None:
    many = list(range(1, 5_001))
    matrix = {"micro_batch_size": many, "sequence_length": many, "gradient_accumulation_steps": many}
    job = {"name": "a", "model": "gpt2", "gpu": "t4", "matrix": matrix}
    assert "125,000,000,000 combinations are too many" in refused("check", file_of(tmp_path, job)).err


@pytest.mark.sweep
def test_the_matrices_of_a_file_are_counted_together(tmp_path: Path) -> None:
    matrix = {"micro_batch_size": list(range(1, 101)), "sequence_length": list(range(1, 100))}
    job = {"model": "gpt2", "gpu": "t4", "matrix": matrix, "modell": 1}
    err = refused("check", file_of(tmp_path, {**job, "name": "a"}, {**job, "name": "b"})).err
    assert "unknown key" in err
    jobs = [{"name": name, "model": "gpt2", "gpu": "no-such-gpu", "matrix": matrix} for name in "ab"]
    err = refused("check", file_of(tmp_path, *jobs)).err
    assert "9,900 combinations are too many: the most in a file is 10,000, and those before it have left 100" in err


def test_exclusions_are_counted_before_they_are_compared(tmp_path: Path) -> None:
    matrix = {"micro_batch_size": list(range(1, 5_001)), "exclude": [{"micro_batch_size": 1}] * 5_000}
    job = {"name": "a", "model": "gpt2", "gpu": "t4", "matrix": matrix}
    assert "5,000 exclusions from 5,000 combinations are too many" in refused("check", file_of(tmp_path, job)).err


def test_names_are_short_and_tell_jobs_apart(tmp_path: Path) -> None:
    cards = [{"name": "card", "memory": "16 GiB"}, {"name": "card", "memory": "24 GiB"}, "v100"]
    matrix = {"gpu": cards, "precision": ["fp32"]}
    names = [one["name"] for one in results(file_of(tmp_path, {**PLAIN, "matrix": matrix}))]
    assert names == [f"a (gpu={card}, precision=fp32)" for card in ("card #1", "card #2", "v100")]


def test_an_exclusion_may_say_a_part_of_a_mapping(tmp_path: Path) -> None:
    matrix = {"parallel": [{"data": 2, "sharding": "zero1"}, {"data": 4}], "exclude": [{"parallel": {"data": 2}}]}
    job = {**PLAIN, "gpu": "v100", "matrix": matrix}
    assert [one["job"]["parallel"]["data"] for one in results(file_of(tmp_path, job))] == [4]


def test_a_matrix_of_the_defaults_is_that_of_every_job(tmp_path: Path) -> None:
    defaults = {"matrix": {"gpu": ["t4", "v100"]}}
    jobs = [PLAIN, {**PLAIN, "name": "b", "matrix": {"micro_batch_size": [1]}}]
    jobs.append({**PLAIN, "name": "c", "gpu": "t4", "matrix": None})
    names = [one["name"] for one in results(file_of(tmp_path, *jobs, defaults=defaults))]
    assert names[:2] == ["a (gpu=t4)", "a (gpu=v100)"]
    assert names[2:] == ["b (gpu=t4, micro_batch_size=1)", "b (gpu=v100, micro_batch_size=1)", "c"]
    both = file_of(tmp_path, PLAIN, defaults={**defaults, "gpu": "t4"})
    assert "defaults.matrix.gpu: stands in the job and in its matrix" in refused("check", both).err
    pinned = file_of(tmp_path, {**PLAIN, "gpu": "h100-80gb"}, defaults=defaults)
    assert "stands in the job and in its matrix" in refused("check", pinned).err


@pytest.mark.parametrize(
    "matrix",
    [
        {"gpu": ["t4"], "parallel": {"data": [1]}, "adapter.rank": [8], "exclude": [{"gpu": "t4"}]},
        {"gpu": ["t4"], "parallel": [{"data": 2}]},
        {"gpu": []},
        {"gpuu": ["t4"]},
    ],
)
def test_the_schema_takes_what_the_reader_takes(matrix: dict[str, Any], tmp_path: Path) -> None:
    document = {"version": 1, "jobs": [{**PLAIN, "matrix": matrix}]}
    errors = list(jsonschema.Draft202012Validator(json.loads(run("schema").out)).iter_errors(document))
    text = refused("check", file_of(tmp_path, {**PLAIN, "matrix": matrix})).err if errors else ""
    assert bool(errors) == ("empty list" in text or "unknown key" in text)


def test_a_value_that_is_no_line_is_wrong_and_not_the_name(tmp_path: Path) -> None:
    err = refused("check", file_of(tmp_path, {**PLAIN, "matrix": {"gpu": ["t4", "a\nb"]}})).err
    assert "jobs.0.gpu: expected one line" in err
    assert err.count("\n") == 1
