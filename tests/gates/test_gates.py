"""Gates over several files, jobs of a file for other commands, and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from tests.cli.running import refused, run, valid
from tests.gates.test_matrix import file_of, results
from vramplan import fit

pytestmark = pytest.mark.contract

JOB = {"name": "a", "model": "gpt2-xl", "gpu": "a100-80gb", "sequence_length": 512, "micro_batch_size": 2}
JOB |= {"gradient_accumulation_steps": 1, "activation_checkpointing": "full"}
MORE = {"sequence_length": 1024, "micro_batch_size": 4}  # a peak that is well above that of the job


def test_several_files_are_one_gate(tmp_path: Path) -> None:
    one = file_of(tmp_path, JOB, name="one.yaml")
    two = file_of(tmp_path, {**JOB, "gpu": "t4"}, name="two.yaml")
    code, out, _ = run("check", one, two, "--format", "json")
    document = valid("check", json.loads(out))
    assert code == 3
    assert [(row["file"], row["name"], row["status"]) for row in document["results"]] == [
        (str(one), "a", "pass"),
        (str(two), "a", "fail"),
    ]
    text = run("check", one, two).out
    assert f"{one.name}#a" in text.replace("\n", "")
    suites = ElementTree.fromstring(run("check", one, two, "--format", "junit").out)
    assert [suite.get("name") for suite in suites] == [str(one), str(two)]


def test_the_problems_of_all_broken_files_are_said_at_once(tmp_path: Path) -> None:
    good = file_of(tmp_path, JOB, name="good.yaml")
    bad = file_of(tmp_path, {**JOB, "bogus": 1}, name="bad.yaml")
    worse = file_of(tmp_path, {**JOB, "gpu": None, "modell": 1}, name="worse.yaml")
    err = refused("check", good, bad, worse).err
    assert "bad.yaml" in err
    assert "worse.yaml" in err


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB)
    assert "is named twice" in refused("check", path, path).err


def test_a_message_is_printed_once(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB, {**JOB, "name": "b", "gpu": "no-such-gpu"})
    ran = run("check", path)
    assert (ran.out + ran.err).count("no-such-gpu") == 1
    assert run("check", path, "--format", "json").err.count("no-such-gpu") == 1


def tight_jobs() -> dict[bool, dict[str, Any]]:
    """A tight job by whether its likely figure is within the usable memory."""
    estimated = {**JOB, "allocator": "estimate"}
    keys = {key: value for key, value in estimated.items() if key not in ("name", "gpu")}
    peak = fit(**keys, gpu={"name": "a card", "memory": "80 GiB"}).peak  # the same on a card of any size
    middle = {True: (peak.device_bytes + peak.high_bytes) // 2, False: (peak.low_bytes + peak.device_bytes) // 2}
    jobs = {within: {**estimated, "gpu": {"name": "a card", "memory": f"{size} B"}} for within, size in middle.items()}
    for within, size in middle.items():
        result = fit(**keys, gpu={"name": "a card", "memory": f"{size} B"})
        assert (result.verdict, result.headroom_bytes >= 0) == ("tight", within)
    return jobs


def test_tight_passes_only_within_the_usable_memory(tmp_path: Path) -> None:
    jobs = tight_jobs()
    within, above = file_of(tmp_path, jobs[True], name="in.yaml"), file_of(tmp_path, jobs[False], name="above.yaml")
    assert run("check", within).code == 0
    assert "1 passed, 0 failed, 0 errors; 1 tight" in run("check", within).out
    assert run("check", within, "--strict").code == 4
    assert run("check", above).code == 3
    assert run("check", above, "--strict").code == 3
    expected = file_of(tmp_path, {**jobs[False], "expect": "tight"}, name="expected.yaml")
    assert run("check", expected).code == 0


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", ["fit", "explain", "timeline", "checkpoints"])
def test_a_job_of_a_file_goes_to_other_commands(tmp_path: Path, command: str) -> None:
    path = file_of(tmp_path, {**JOB, "name": "first", "gpu": "t4"}, JOB)
    code, out, _ = run(command, "--job", f"{path}#a", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["job"]["gpu"]["name"] == "a100-80gb"
    assert document["job"]["micro_batch_size"] == 2


def test_a_job_of_a_file_is_what_check_judges_and_options_replace_its_keys(tmp_path: Path) -> None:
    job = {**JOB, "allocator": "estimate"}  # a gate looks closer at what is nearly full alone
    path = file_of(tmp_path, job)
    (judged,) = results(path)
    answer = json.loads(run("fit", "--job", path, "--format", "json").out)
    assert answer["peak"] == judged["peak"]
    words = ("--sequence-length", "256", "--data", "2")
    other = json.loads(run("fit", "--job", path, *words, "--format", "json").out)
    changed = {**job, "sequence_length": 256, "parallel": {"data": 2}}
    assert other["peak"] == results(file_of(tmp_path, changed, name="changed.yaml"))[0]["peak"]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("{path}#b", "has no job 'b'"),
        ("{path}#", "there is no name behind the #"),
        ("{path}", "has 2 jobs: say which"),
        ("nothing.yaml#a", "nothing.yaml"),
    ],
)
def test_a_job_that_is_not_there_is_refused(tmp_path: Path, job: str, said: str) -> None:
    path = file_of(tmp_path, JOB, {**JOB, "name": "other"})
    assert said in refused("fit", "--job", job.format(path=path)).err


def test_an_option_beside_a_job_of_a_file_is_checked_like_a_key(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB)
    assert "micro_batch_size" in refused("fit", "--job", path, "--micro-batch", "0").err


def test_a_baseline_fails_on_growth_and_names_the_cause(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB)
    baseline = tmp_path / "base.json"
    baseline.write_text(run("check", path, "--format", "json").out, "utf-8")
    assert run("check", path, "--baseline", baseline).code == 0
    grown = file_of(tmp_path, {**JOB, "sequence_length": 1024, "micro_batch_size": 4})
    ran = run("check", grown, "--baseline", baseline, "--format", "json")
    (row,) = json.loads(ran.out)["results"]
    assert (ran.code, row["status"]) == (3, "fail")
    (reason,) = row["reasons"]
    assert "over the baseline" in reason
    assert "sequence_length was 512 and is 1024" in reason
    assert "activations +" in reason or "logits +" in reason
    assert run("check", grown, "--baseline", baseline, "--tolerance", "1000%").code == 0
    assert run("check", grown, "--baseline", baseline, "--tolerance", "60 GiB").code == 0
    smaller = file_of(tmp_path, {**JOB, "sequence_length": 256})
    assert run("check", smaller, "--baseline", baseline).code == 0


def test_a_baseline_knows_new_jobs_and_those_that_are_gone(tmp_path: Path) -> None:
    baseline = tmp_path / "base.json"
    baseline.write_text(run("check", file_of(tmp_path, JOB), "--format", "json").out, "utf-8")
    ran = run("check", file_of(tmp_path, {**JOB, "name": "b"}), "--baseline", baseline)
    assert ran.code == 0
    assert "the baseline does not have this job" in " ".join(ran.out.split())
    assert "a is in the baseline and no more in the files" in ran.err


@pytest.mark.parametrize("text", ["no json", "[]", "{}", '{"results": [1]}', '{"results": [{"name": "a", "peak": 1}]}'])
def test_what_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    baseline = tmp_path / "base.json"
    baseline.write_text(text, "utf-8")
    assert "base.json" in refused("check", file_of(tmp_path, JOB), "--baseline", baseline).err


@pytest.mark.parametrize("tolerance", ["-1%", "much", "2", "", "5 apples"])
def test_what_is_no_tolerance_is_refused(tmp_path: Path, tolerance: str) -> None:
    baseline = tmp_path / "base.json"
    baseline.write_text('{"results": []}', "utf-8")
    path = file_of(tmp_path, JOB)
    assert "is not a tolerance" in refused("check", path, "--baseline", baseline, "--tolerance", tolerance).err


@pytest.mark.parametrize("name", ["job-file", "fit", "check", "error"])
def test_schemas_are_printed(name: str) -> None:
    assert json.loads(run("schema", name).out)["$id"].startswith(f"urn:vramplan:schema:{name}:")


def test_a_printed_schema_is_enough_to_validate_an_answer(tmp_path: Path) -> None:
    printed = json.loads(run("schema", "check").out)
    answer = json.loads(run("check", file_of(tmp_path, JOB), "--format", "json").out)
    jsonschema.Draft202012Validator(printed).validate(answer)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(printed).validate({**answer, "results": [{"name": 1}]})


def test_an_unknown_schema_is_refused_with_near_names() -> None:
    assert "did you mean" in refused("schema", "job-fil").err


def test_names_that_differ_in_spaces_are_one(tmp_path: Path) -> None:
    assert "names another job too" in refused("check", file_of(tmp_path, JOB, {**JOB, "name": "a "})).err


def answered(folder: Path, *jobs: dict[str, Any], name: str = "jobs.yaml") -> Path:
    """A baseline of a file of jobs."""
    baseline = folder / "base.json"
    baseline.write_text(run("check", file_of(folder, *jobs, name=name), "--format", "json").out, "utf-8")
    return baseline


@pytest.mark.parametrize("name", ["text", "json", "yaml", "csv", "markdown", "junit", "github"])
def test_every_format_shows_what_has_grown(tmp_path: Path, name: str) -> None:
    baseline = answered(tmp_path, JOB, {**JOB, "name": "gone"})
    grown = file_of(tmp_path, {**JOB, **MORE})
    ran = run("check", grown, "--baseline", baseline, "--format", name)
    assert ran.code == 3
    assert "sequence_length was 512 and is 1024" in " ".join(ran.out.split())
    assert "gone is in the baseline and no more in the files" in ran.err
    if name == "json":
        document = valid("check", json.loads(ran.out))
        was = json.loads(baseline.read_text("utf-8"))["results"][0]["peak"]["device_bytes"]
        assert document["results"][0]["baseline_bytes"] == was
        assert document["summary"]["gone"] == ["gone"]


def test_a_file_of_another_path_is_compared_with_its_own_jobs(tmp_path: Path) -> None:
    small, large = JOB, {**JOB, **MORE}
    one, two = file_of(tmp_path, small, name="one.yaml"), file_of(tmp_path, large, name="two.yaml")
    baseline = tmp_path / "base.json"
    baseline.write_text(run("check", one, two, "--format", "json").out, "utf-8")
    (tmp_path / "moved").mkdir()
    moved = [file_of(tmp_path / "moved", job, name=f"{name}.yaml") for name, job in (("one", small), ("two", large))]
    ran = run("check", *reversed(moved), "--baseline", baseline, "--format", "json")
    rows = json.loads(ran.out)["results"]
    assert [row["baseline_bytes"] for row in rows] == [row["peak"]["device_bytes"] for row in rows]
    assert ran.err == ""
    swapped = file_of(tmp_path / "moved", large, name="one.yaml")
    assert run("check", swapped, "--baseline", baseline).code == 3


def test_a_strict_tight_that_has_grown_is_a_failed_gate(tmp_path: Path) -> None:
    within = tight_jobs()[True]
    baseline = answered(tmp_path, within)
    was = json.loads(baseline.read_text("utf-8"))
    was["results"][0]["peak"]["device_bytes"] //= 2
    baseline.write_text(json.dumps(was), "utf-8")
    assert run("check", file_of(tmp_path, within), "--strict", "--baseline", baseline).code == 3


@pytest.mark.parametrize(
    "results",
    [
        [{"name": "a", "peak": {"device_bytes": True}}],
        [{"name": "a", "peak": {"device_bytes": -1}}],
        [{"peak": {"device_bytes": 1}}],
    ],
)
def test_a_baseline_with_no_figures_is_refused(tmp_path: Path, results: list[Any]) -> None:
    baseline = tmp_path / "base.json"
    baseline.write_text(json.dumps({"schema_version": 1, "results": results}), "utf-8")
    assert "results.0" in refused("check", file_of(tmp_path, JOB), "--baseline", baseline).err


@pytest.mark.parametrize("job", [{"components": 3, "job": []}, {"components": [{"name": "weights", "bytes": "x"}, 1]}])
def test_an_odd_baseline_is_compared_as_far_as_it_goes(tmp_path: Path, job: dict[str, Any]) -> None:
    baseline = tmp_path / "base.json"
    results = [{"name": "a", "file": 7, "recommended": 1, "peak": {"device_bytes": 1}, **job}]
    baseline.write_text(json.dumps({"schema_version": 1, "results": results}), "utf-8")
    ran = run("check", file_of(tmp_path, JOB), "--baseline", baseline, "--format", "json")
    assert ran.code == 3
    assert "the peak grew by" in ran.out


def test_a_baseline_nested_without_end_is_no_traceback(tmp_path: Path) -> None:
    baseline = tmp_path / "base.json"
    baseline.write_text("[" * 200_000, "utf-8")
    assert "nested too deep" in refused("check", file_of(tmp_path, JOB), "--baseline", baseline).err


def test_a_tolerance_needs_a_baseline(tmp_path: Path) -> None:
    assert "--baseline" in refused("check", file_of(tmp_path, JOB), "--tolerance", "2%").err


def test_one_file_under_two_names_is_named_twice(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB)
    assert "is named twice" in refused("check", path, f"{tmp_path}/./jobs.yaml").err


def test_what_is_wrong_with_several_jobs_is_said_once(tmp_path: Path) -> None:
    jobs = [{"name": name, "sequence_length": 2048, "model": "gpt2", "gpu": "t4"} for name in "abc"]
    defaults = {"sequence_length": 2048, "model": "gpt2", "gpu": "t4"}
    path = file_of(tmp_path, *({"name": job["name"]} for job in jobs), defaults=defaults)
    err = run("check", path).err
    assert err.startswith("error: a and 2 more jobs: ")
    assert err.count("\n") == 1


def test_jobs_of_a_matrix_are_selected_and_named(tmp_path: Path) -> None:
    matrix = {"micro_batch_size": [1, 2]}
    job = {key: value for key, value in JOB.items() if key != "micro_batch_size"} | {"matrix": matrix}
    path = file_of(tmp_path, job)
    assert "'a (*' selects the jobs of its matrix" in refused("check", path, "--job", "a").err
    assert run("check", path, "--job", "a (*", "--print", "summary.total").out == "2\n"
    assert run("check", path, "--job", f"{path}#a (*=2)", "--print", "summary.total").out == "1\n"
    assert "'a' stands for 2 jobs: say which" in refused("fit", "--job", f"{path}#a").err
    assert run("fit", "--job", f"{path}#a (micro_batch_size=2)", "--print", "job.micro_batch_size").out == "2\n"


@pytest.mark.sweep
def test_options_beside_a_job_are_those_of_fit(tmp_path: Path) -> None:
    path = file_of(tmp_path, {**JOB, "gpu": {"name": "card", "memory": "40 GiB", "bf16": False}})
    answer = json.loads(run("fit", "--job", path, "-g", "24 GiB", "--format", "json").out)
    alone = json.loads(
        run(
            *("fit", "-m", "gpt2-xl", "-g", "24 GiB", "--seq", "512", "--micro-batch", "2", "--steps", "1"),
            *("--checkpointing", "full", "--format", "json"),
        ).out
    )
    assert {**answer, "name": ""} | {"job": {**answer["job"], "name": ""}} == {**alone, "name": ""} | {
        "job": {**alone["job"], "name": ""}
    }
    open_one = json.loads(run("fit", "--job", path, "--micro-batch", "null", "--format", "json").out)
    assert open_one["recommended"]["micro_batch_size"] > 2
    refusal = refused("fit", "--job", path, "--micro-batch", "0").err
    assert refusal == "error: micro_batch_size: 0 is too small; the least is 1\n"


def test_two_jobs_of_one_name_are_not_told_apart(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB, {**JOB, "gpu": "t4"})
    assert "has 2 jobs 'a'" in refused("fit", "--job", f"{path}#a").err


def test_a_folder_of_profiles_that_is_not_there_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMPLAN_PROFILES", "/nonexistent")
    path = file_of(tmp_path, JOB, {**JOB, "name": "b"})
    for words in (("check", path), ("fit", "--job", f"{path}#a"), ("fit", "-m", "gpt2-xl", "-g", "v100"), ("gpus",)):
        ran = run(*words)
        assert (ran.out + ran.err).count("VRAMPLAN_PROFILES") == 1
        document = run(*words, "--format", "json").document
        for one in document.get("results", [document]):
            assert len(one["error"]["problems"]) == 1
