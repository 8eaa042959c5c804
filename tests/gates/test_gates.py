"""Gates over several files, jobs of a file for other commands, and baselines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.running import refused, run, valid
from tests.gates.test_matrix import file_of, results

pytestmark = pytest.mark.contract

JOB = {"name": "a", "model": "gpt2-xl", "gpu": "a100-80gb", "sequence_length": 512, "micro_batch_size": 2}
JOB |= {"gradient_accumulation_steps": 1, "activation_checkpointing": "full"}
# a batch whose likely figure is above the usable memory while the low end of its band is not
ABOVE = {"model": "gpt2-xl", "gpu": "v100-32gb", "precision": "amp-fp16", "sequence_length": 1024}


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
    found: dict[bool, dict[str, Any]] = {}
    for hundredths in range(1000, 4000, 20):
        if len(found) == 2:
            break
        job = {**JOB, "gpu": {"name": "a card", "memory": f"{hundredths / 100} GiB"}}
        from vramplan import fit

        result = fit(**{key: value for key, value in job.items() if key != "name"})
        if result.verdict == "tight":
            found.setdefault(result.headroom_bytes >= 0, job)
    return found


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


@pytest.mark.parametrize("command", ["fit", "explain", "timeline", "checkpoints"])
def test_a_job_of_a_file_goes_to_other_commands(tmp_path: Path, command: str) -> None:
    path = file_of(tmp_path, {**JOB, "name": "first", "gpu": "t4"}, JOB)
    code, out, _ = run(command, "--job", f"{path}#a", "--format", "json")
    document = json.loads(out)
    assert code == 0
    assert document["job"]["gpu"]["name"] == "a100-80gb"
    assert document["job"]["micro_batch_size"] == 2


def test_a_job_of_a_file_is_what_check_judges_and_options_replace_its_keys(tmp_path: Path) -> None:
    path = file_of(tmp_path, JOB)
    (judged,) = results(path)
    answer = json.loads(run("fit", "--job", path, "--format", "json").out)
    assert answer["peak"] == judged["peak"]
    words = ("--sequence-length", "256", "--data", "2")
    other = json.loads(run("fit", "--job", path, *words, "--format", "json").out)
    changed = {**JOB, "sequence_length": 256, "parallel": {"data": 2}}
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


def test_an_unknown_schema_is_refused_with_near_names() -> None:
    assert "did you mean" in refused("schema", "job-fil").err


def test_names_that_differ_in_spaces_are_one(tmp_path: Path) -> None:
    assert "names another job too" in refused("check", file_of(tmp_path, JOB, {**JOB, "name": "a "})).err
