"""`vramplan measure` around a runner: what it asks for, what it writes, what it does after a crash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.running import ABLE, TINY, refused, run, valid, write_jobs
from tests.measure.runners import MEASURED, OOM, Runner
from vramplan.errors import InputError, Problem
from vramplan.job import build_job
from vramplan.measure import apart
from vramplan.measure.grid import _name

GPU = {"name": "a card", "memory": "8 GiB", **ABLE}
JOB = {"model": TINY, "gpu": GPU, "sequence_length": 64, "global_batch_size": 8, "micro_batch_size": 4}
JOB["activation_checkpointing"] = "none"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runner]:
    """Takes the place of the process that would run a job."""

    def install(*words: Any, **named: Any) -> Runner:
        made = Runner(*words, **named)
        monkeypatch.setattr(apart, "run_apart", made)
        monkeypatch.setattr(apart, "check_installed", lambda: None)
        return made

    return install


def grid(folder: Path, *changes: dict[str, Any]) -> Path:
    return write_jobs(folder / "grid.yaml", *({**JOB, **change} for change in changes or ({}, {"precision": "fp32"})))


def cases(path: Path) -> list[Any]:
    found: list[Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return found


def test_every_job_is_run_with_its_choices_made_and_written(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    made, output = runner(), tmp_path / "measured.yaml"
    ran = run("measure", "--grid", grid(tmp_path), "-o", output, "--iterations", 7, "--format", "json")
    assert ran.code == 0, ran
    answer = valid("measure", ran.document)
    assert [row["status"] for row in answer["results"]] == ["measured", "measured"]
    assert answer["summary"] == {"total": 2, "measured": 2, "traced": 0, "oom": 0, "skipped": 0, "error": 0}
    assert [request.how for request in made.asked] == ["gpu", "gpu"]
    assert made.asked[0].steps == 7
    assert made.asked[0].job["optimizer_implementation"] == "fused"
    first = answer["results"][0]
    assert first["relative_error"] == (first["predicted"]["allocated_bytes"] - 2**30) / 2**30
    written = cases(output)
    assert [case["name"] for case in written] == ["job 0", "job 1"]
    assert written[0]["measured"] == {
        "peak_bytes": 2**30,
        "metric": "allocated",
        "outcome": "fits",
        "tokens_per_second": 4 * 2 * 64 / 0.25,
    }
    assert written[0]["environment"]["torch"] == "2.13.0"


def test_validate_reads_what_was_written_and_predicts_the_same(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    runner()
    output = tmp_path / "measured.yaml"
    ran = run("measure", "--grid", grid(tmp_path), "-o", output, "--format", "json")
    again = valid("validate", run("validate", output, "--format", "json").document)
    for row, back in zip(ran.document["results"], again["results"], strict=True):
        assert back["predicted_bytes"] == row["predicted"]["allocated_bytes"]
        assert back["relative_error"] == row["relative_error"]


def test_what_is_in_the_output_is_skipped(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    output = tmp_path / "measured.yaml"
    runner()
    assert run("measure", "--grid", grid(tmp_path, {}), "-o", output).code == 0
    before = output.read_text("utf-8")
    made = runner()
    ran = run("measure", "--grid", grid(tmp_path, {}, {"attention": "eager"}), "-o", output, "--format", "json")
    assert [row["status"] for row in valid("measure", ran.document)["results"]] == ["skipped", "measured"]
    assert made.names == ["job 1"]
    assert output.read_text("utf-8").startswith(before)


def test_a_crash_leaves_the_jobs_before_it_and_the_next_call_goes_on(
    tmp_path: Path, runner: Callable[..., Runner]
) -> None:
    def crash(request: Any) -> None:
        if request.job["name"] == "job 1":
            raise KeyboardInterrupt

    output, jobs = tmp_path / "measured.yaml", grid(tmp_path, {}, {"precision": "fp32"}, {"attention": "eager"})
    runner(then=crash)
    assert run("measure", "--grid", jobs, "-o", output).code == 130
    assert [case["name"] for case in cases(output)] == ["job 0"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["grid.yaml", "measured.yaml"]
    made = runner()
    assert run("measure", "--grid", jobs, "-o", output).code == 0
    assert made.names == ["job 1", "job 2"]


def test_a_run_out_of_memory_is_a_result(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    runner(then=lambda request: OOM if request.job["name"] == "job 0" else None)
    output = tmp_path / "measured.yaml"
    ran = run("measure", "--grid", grid(tmp_path), "-o", output, "--format", "json")
    assert ran.code == 0
    assert [row["status"] for row in valid("measure", ran.document)["results"]] == ["oom", "measured"]
    assert ran.document["results"][0]["relative_error"] is None
    case = cases(output)[0]
    assert (case["measured"], case["use"]) == ({"outcome": "oom"}, ["fit"])
    summary = valid("validate", run("validate", output, "--format", "json").document)["summary"]
    assert summary["errors"] == 0


def test_what_cannot_be_run_is_named_and_the_others_go_on(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    def fail(request: Any) -> None:
        if request.job["name"] == "job 1":
            raise InputError([Problem("the run failed: RuntimeError: boom")])

    made, output = runner(then=fail), tmp_path / "measured.yaml"
    changes: tuple[dict[str, Any], ...] = (
        {"parallel": {"data": 2}, "global_batch_size": 16},
        {},
        {"precision": "fp32"},
    )
    ran = run("measure", "--grid", grid(tmp_path, *changes), "-o", output, "--format", "json")
    assert ran.code == 2
    answer = valid("measure", ran.document)
    assert [row["status"] for row in answer["results"]] == ["error", "error", "measured"]
    assert answer["results"][0]["error"]["problems"][0]["key"] == "parallel"
    assert "boom" in ran.err
    assert made.names == ["job 1", "job 2"]
    assert [case["name"] for case in cases(output)] == ["job 2"]


def test_another_run_of_a_name_is_refused(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    output = tmp_path / "measured.yaml"
    runner()
    run("measure", "--grid", grid(tmp_path, {}), "-o", output)
    ran = run("measure", "--grid", grid(tmp_path, {"precision": "fp32"}), "-o", output)
    assert ran.code == 2
    assert "precision differs" in ran.err
    ran = run("measure", "--grid", grid(tmp_path, {}), "-o", output, "--trace")
    assert ran.code == 2
    assert "trace.how differs" in ran.err


def test_single_jobs_of_one_name_are_numbered(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    runner()
    output = tmp_path / "measured.yaml"
    for _ in range(2):
        ran = run("measure", "-m", "gpt2", "-g", "v100", "--micro-batch", 1, "--global-batch", 1, "-o", output)
        assert ran.code == 0, ran
        assert ran.out.startswith("MEASURED  gpt2 on v100, 1 x 1024")
        assert "a step of 2 micro-steps takes 0.250 s" in ran.out
    first, second = (case["name"] for case in cases(output))
    assert second == f"{first} (2)"


def test_a_trace_says_nothing_of_whether_it_fits(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    made = runner(MEASURED._replace(reserved_bytes=None, device_bytes=None, step_seconds=None))
    output = tmp_path / "measured.yaml"
    ran = run("measure", "--grid", grid(tmp_path, {}), "-o", output, "--trace", "--format", "json")
    assert valid("measure", ran.document)["results"][0]["status"] == "traced"
    assert made.asked[0].how == "trace"
    case = cases(output)[0]
    assert case["use"] == ["peak"]
    assert "outcome" not in case["measured"]


@pytest.mark.parametrize("style", ["text", "csv", "markdown", "yaml"])
def test_every_format_has_every_job(tmp_path: Path, runner: Callable[..., Runner], style: str) -> None:
    runner(then=lambda request: OOM if request.job["name"] == "job 0" else None)
    ran = run("measure", "--grid", grid(tmp_path), "-o", tmp_path / "m.yaml", "--format", style)
    assert ran.code == 0
    assert all(name in ran.out for name in ("job 0", "job 1", "oom"))
    assert all(len(line) <= 80 for line in ran.out.splitlines()) or style != "text"


def test_lines_of_the_output_stay_as_they_are(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    runner()
    output = tmp_path / "measured.yaml"
    text = "# mine\nversion: 1\njobs:\n  # the first\n  - name: old\n    model: gpt2\n    gpu: v100"
    output.write_text(text, "utf-8")
    assert run("measure", "--grid", grid(tmp_path, {}), "-o", output).code == 0
    assert output.read_text("utf-8").startswith(text + "\n  - name: job 0\n")
    assert [case["name"] for case in cases(output)] == ["old", "job 0"]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"version": 1, "jobs": [{**JOB, "name": "old"}]}),
        "jobs:\n- {name: a, model: gpt2, gpu: v100}\nversion: 1\n",
    ],
)
def test_an_output_of_another_form_is_refused_and_kept(
    tmp_path: Path, runner: Callable[..., Runner], text: str
) -> None:
    runner()
    output = tmp_path / "measured.yaml"
    output.write_text(text, "utf-8")
    ran = refused("measure", "--grid", grid(tmp_path, {}), "-o", output)
    assert "cannot" in ran.err or "not written so" in ran.err
    assert output.read_text("utf-8") == text


def test_options_that_would_be_ignored_are_refused(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    made, jobs = runner(), grid(tmp_path)
    assert "the jobs are in" in refused("measure", "--grid", jobs, "--precision", "fp32", "-o", tmp_path / "m").err
    assert "file of the grid" in refused("measure", "--grid", jobs, "-o", jobs).err
    assert "--output" in refused("measure", "--grid", jobs, "-o", tmp_path / "none" / "m.yaml").err
    assert made.names in ([], ["job 0"])


@pytest.mark.sweep
def test_a_trace_has_no_compiled_step(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    made, jobs = runner(), grid(tmp_path, {"compile": True})
    assert "compile" in refused("measure", "--grid", jobs, "--trace", "-o", tmp_path / "m.yaml").err
    assert made.names == []
    assert run("measure", "--grid", jobs, "-o", tmp_path / "m.yaml").code == 0
    assert made.asked[0].job["compile"] is True


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"precision": "mixed-bf16"}, "precision"),
        ({"runtime": "litgpt"}, "runtime"),
        ({"loss": "dpo"}, "loss"),
        ({"packing": True, "attention": "flash"}, "packing"),
        ({"eval_batch_size": 2}, "eval_batch_size"),
        ({"model": "chatglm3-6b"}, "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_loop_does_not_have_is_refused_by_its_key(
    tmp_path: Path, runner: Callable[..., Runner], change: dict[str, Any], key: str
) -> None:
    made = runner()
    ran = run("measure", "--grid", grid(tmp_path, change), "-o", tmp_path / "m.yaml", "--format", "json")
    assert ran.code == 2
    problems = valid("measure", ran.document)["results"][0]["error"]["problems"]
    assert key in [problem["key"] for problem in problems], problems
    assert all(problem["hint"] for problem in problems)
    assert made.asked == []


@pytest.mark.contract
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "vit-base-patch16-224"}, "4 x 224 px"),
        ({"model": "resnet-18", "image_size": 65}, "4 x 65 px"),
        ({"model": TINY, "sequence_length": 64, "adapter": {"kind": "lora", "rank": 4}}, "4 x 64"),
    ],
    ids=["vit", "resnet", "lora"],
)
def test_images_and_adapters_are_run_and_named(
    tmp_path: Path, runner: Callable[..., Runner], change: dict[str, Any], named: str
) -> None:
    made, output = runner(), tmp_path / "measured.yaml"
    keys = {key: value for key, value in JOB.items() if key != "sequence_length"}
    ran = run("measure", "--grid", write_jobs(tmp_path / "grid.yaml", {**keys, **change}), "-o", output)
    assert ran.code == 0, ran
    asked = made.asked[0].job
    rank = change.get("adapter", {}).get("rank")
    assert (asked["adapter"] or {}).get("rank") == rank
    name = _name(build_job(asked))
    assert name.startswith(f"{asked['model']['name']} on a card, {named}, ")
    assert name.endswith(f", lora {rank}") == (rank is not None)
    assert valid("validate", run("validate", output, "--format", "json").document)["summary"]["errors"] == 0


def test_the_textbook_has_no_step(tmp_path: Path, runner: Callable[..., Runner]) -> None:
    runner()
    job = {"model": {"parameters": 1500000000}, "gpu": "v100", "runtime": "textbook"}
    jobs = write_jobs(tmp_path / "grid.yaml", job)
    assert "runtime" in refused("measure", "--grid", jobs, "-o", tmp_path / "m.yaml").err


def test_without_pytorch_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "find_spec", lambda name: None)
    ran = refused("measure", "-m", "gpt2", "-g", "v100", "-o", tmp_path / "m.yaml")
    assert "needs PyTorch and Transformers" in ran.err
    assert "vramplan[measure]" in ran.err


def test_without_a_gpu_the_trace_is_named(
    tmp_path: Path, runner: Callable[..., Runner], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner()
    monkeypatch.setenv("PATH", str(tmp_path))  # no tool to ask
    assert "--trace runs without one" in refused("measure", "-m", "gpt2", "-o", tmp_path / "m.yaml").err
