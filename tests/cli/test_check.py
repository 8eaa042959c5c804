"""The gate: what passes, what fails and with which code, and that it fails closed."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ABLE, TINY, Ran, fit, process, refused, run, valid, write_jobs

FITS = {"model": "gpt2-xl", "gpu": "v100"}  # 93.2 % of the card
TIGHT = {"model": "gpt2-xl", "gpu": "v100", "reserve": "2 GiB"}  # the estimate is within what is left
ABOVE = {"model": "gpt2-xl", "gpu": "v100", "reserve": "3.5 GiB"}  # more likely than not it does not fit
NO = {"model": "gpt2-xl", "gpu": "t4"}
ERROR = {"model": "gpt2-xxl", "gpu": "t4"}
NOT_MODELLED = {"model": "gpt2-xl", "gpu": "t4", "quantization": "nf4"}


def check(folder: Path, *jobs: dict[str, Any], words: tuple[str, ...] = (), **top: Any) -> Ran:
    return run("check", write_jobs(folder / "jobs.yaml", *jobs, **top), *words)


def document(ran: Ran) -> Any:
    return valid("check", ran.document)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    ("job", "expect", "code", "strict_code"),
    [
        (FITS, None, 0, 0),
        (FITS, "fits", 0, 0),
        (FITS, "tight", 3, 3),
        (FITS, "does-not-fit", 3, 3),
        (TIGHT, None, 0, 4),
        (TIGHT, "tight", 0, 0),
        (TIGHT, "does-not-fit", 3, 3),
        (ABOVE, None, 3, 3),  # a gate fails closed
        (ABOVE, "tight", 0, 0),
        (NO, None, 3, 3),
        (NO, "tight", 3, 3),
        (NO, "does-not-fit", 0, 0),
        (ERROR, None, 2, 2),
        (ERROR, "does-not-fit", 2, 2),  # it fails closed
        (NOT_MODELLED, "does-not-fit", 2, 2),
    ],
)
def test_a_job_passes_when_its_verdict_is_the_expected_one(
    job: dict[str, Any], expect: str | None, code: int, strict_code: int, strict: bool, tmp_path: Path
) -> None:
    gate = job if expect is None else {**job, "expect": expect}
    words = ("--format", "json", *(["--strict"] if strict else []))
    ran = check(tmp_path, gate, words=words)
    wanted = strict_code if strict else code
    assert ran.code == wanted
    (result,) = document(ran)["results"]
    assert (result["passed"], result["exit_code"]) == (wanted == 0, wanted)
    if wanted != 2:
        assert bool(result["reasons"]) is (wanted != 0 or (job is TIGHT and expect is None))
    if job is TIGHT and expect is None:
        assert result["reasons"] == ["tight: the estimate is within the usable memory, and its range crosses it"]
    text = check(tmp_path, gate, words=words[2:])
    assert text.code == wanted
    word = "ERROR" if wanted == 2 else "FAIL" if wanted else "TIGHT" if job in (TIGHT, ABOVE) else "PASS"
    assert word in text.out


FULL = {"model": TINY, "gpu": {"name": "card", "memory": "636 MiB", **ABLE}, "micro_batch_size": 1}  # 614.4 are context
FULL["allocator"] = "estimate"


def test_a_fit_above_max_utilization_fails_and_0_95_is_the_default(tmp_path: Path) -> None:
    (result,) = document(check(tmp_path, FULL, words=("--format", "json")))["results"]
    used = result["utilization"]
    assert (result["verdict"], result["passed"], result["exit_code"]) == ("fits", False, 3)
    assert 0.95 < used < 1
    (reason,) = result["reasons"]
    shown, most = (float(word.rstrip("%")) for word in reason.split() if word.endswith("%"))
    assert (shown > most, most) == (True, 95)
    for limit, code in ((used, 0), (used - 1e-6, 3), (1, 0), (0.01, 3)):
        assert check(tmp_path, {**FULL, "max_utilization": limit}).code == code
    assert check(tmp_path, {**FITS, "max_utilization": 0.9}).code == 3
    assert check(tmp_path, FITS).code == 0


def test_max_utilization_applies_to_a_fit_only(tmp_path: Path) -> None:
    assert check(tmp_path, {**TIGHT, "max_utilization": 0.1}).code == 0
    assert check(tmp_path, {**TIGHT, "max_utilization": 0.1, "expect": "tight"}).code == 0


def test_bad_input_outranks_a_failure_and_a_failure_outranks_tight(tmp_path: Path) -> None:
    rank = {0: FITS, 4: TIGHT, 3: NO, 2: ERROR}
    order = [0, 4, 3, 2]
    for codes in itertools.product(order, repeat=2):
        ran = check(tmp_path, *(rank[code] for code in codes), words=("--strict", "--format", "json"))
        assert ran.code == max(codes, key=order.index)
        assert [result["exit_code"] for result in document(ran)["results"]] == list(codes)


def test_one_job_that_cannot_be_computed_does_not_hide_the_others(tmp_path: Path) -> None:
    ran = check(tmp_path, FITS, ERROR, NO, NOT_MODELLED, TIGHT, words=("--format", "json"))
    answer = document(ran)
    assert ran.code == 2
    assert [result["name"] for result in answer["results"]] == [f"job {number}" for number in range(5)]
    assert [result.get("verdict") for result in answer["results"]] == ["fits", None, "does-not-fit", None, "tight"]
    assert answer["summary"] == {"total": 5, "passed": 2, "failed": 1, "tight": 1, "errors": 2, "gone": None}
    missing, unmodelled = (result["error"] for result in answer["results"] if "error" in result)
    assert "gpt2-xl" in missing["message"]  # the near match
    assert unmodelled["problems"][0]["key"].endswith("quantization")
    for problem in missing["problems"] + unmodelled["problems"]:
        assert problem["file"].endswith("jobs.yaml")
        assert problem["line"]
        assert problem["column"]
    assert ran.err.count("\n") == 2
    assert ran.err.startswith("error: job 1: ")
    text = check(tmp_path, FITS, ERROR, NO, NOT_MODELLED, TIGHT)
    assert text.out.splitlines()[-1] == "5 jobs: 2 passed, 1 failed, 2 errors; 1 tight"


def test_the_result_of_a_gate_is_that_of_fit(tmp_path: Path) -> None:
    (result,) = document(check(tmp_path, FITS, words=("--format", "json")))["results"]
    alone = run("fit", "-m", "gpt2-xl", "-g", "v100", "--format", "json").document
    assert {**alone, "name": result["name"]} | {"job": result["job"]} == {key: result[key] for key in alone}


def test_jobs_are_selected_by_name_and_by_pattern(tmp_path: Path) -> None:
    jobs = [{**FITS, "name": "gpt2 fits"}, {**NO, "name": "gpt2 does not"}, {**TIGHT, "name": "tight [1]"}]

    def names(*words: str) -> list[str]:
        ran = check(tmp_path, *jobs, words=(*words, "--format", "json"))
        return [result["name"] for result in document(ran)["results"]]

    assert names("--job", "gpt2 fits") == ["gpt2 fits"]
    assert names("--job", "gpt2*") == ["gpt2 fits", "gpt2 does not"]
    assert names("--job", "tight*", "--job", "gpt2 f?ts") == ["gpt2 fits", "tight [1]"]
    assert check(tmp_path, *jobs, words=("--job", "gpt2 fits")).code == 0
    assert check(tmp_path, *jobs, words=("--job", "gpt2 does not")).code == 3


def test_an_empty_selection_is_2(tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", FITS)
    for words in (("--job", "job 1"), ("--job", "x*"), ("--job", "job 0", "--job", "nobody"), ("--job", "")):
        assert "--job" in refused("check", file, *words).err
    assert "job 0" in refused("check", file, "--job", "jobb 0").err
    assert "no jobs" in refused("check", write_jobs(tmp_path / "none.yaml")).err


def test_standard_input_is_a_file(tmp_path: Path) -> None:
    text = write_jobs(tmp_path / "jobs.yaml", FITS, NO).read_text()
    ran = run("check", "-", "--format", "json", stdin=text)
    assert (ran.code, ran.err) == (3, "")
    done = process("check", "-", "--quiet", input=text)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    err = run("check", "-", "--format", "json", stdin=text.replace("gpt2-xl", "gpt2-xxl")).err
    assert "gpt2-xl" in err
    assert refused("check", "-").err.startswith("error: -")


def test_defaults_are_merged_deeply_and_jobs_win(tmp_path: Path) -> None:
    defaults = {"gpu": {"name": "card", "memory": "40 GiB", "bf16": False}, "model": "gpt2-xl", "parallel": {"data": 4}}
    jobs: list[dict[str, Any]] = [{}, {"gpu": {"memory": "20 GiB"}, "parallel": {"tensor": 1}}, {"gpu": "t4"}]
    ran = check(tmp_path, *jobs, words=("--format", "json"), defaults=defaults)
    first, second, third = (result["job"] for result in document(ran)["results"])
    assert (first["gpu"]["memory"], first["gpu"]["bf16"]) == (f"{40 * 2**30} B", False)
    assert (second["gpu"]["memory"], second["gpu"]["name"]) == (f"{20 * 2**30} B", "card")
    assert second["parallel"]["data"] == 4
    assert third["gpu"]["name"] == "t4"


def test_a_json_file_is_a_yaml_file_and_names_are_kept_in_order(tmp_path: Path) -> None:
    names = ["b", "a", "c c"]
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps({"version": 1, "jobs": [{"name": name, **FITS} for name in names]}, indent=2))
    assert [r["name"] for r in document(run("check", file, "--format", "json"))["results"]] == names


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("jobs: []\n", "version"),
        ("version: 2\njobs: [{name: a, model: gpt2, gpu: t4}]\n", "version"),
        ("version: 1\n", "jobs"),
        ("version: 1\njobs: {name: a}\n", "list"),
        ("version: 1\njobs: [gpt2]\n", "keys and values"),
        ("version: 1\njobs: [{model: gpt2, gpu: t4}]\n", "name"),
        ("version: 1\njobs: [{name: a, model: gpt2, gpu: t4}, {name: a, model: gpt2, gpu: t4}]\n", "names another job"),
        ("version: 1\njobs: [{name: a, modle: gpt2, gpu: t4}]\n", "did you mean model"),
        ("version: 1\njobs: [{name: a, model: gpt2, gpu: t4, micro_batch_size: 0}]\n", "too small"),
        ("version: 1\njobs: [{name: a, model: gpt2, gpu: t4, micro_batch_size: true}]\n", "whole number"),
        ("version: 1\njobs: [{name: a, model: gpt2, gpu: t4, dropout: .nan}]\n", "finite"),
        ("version: 1\njobs: [{name: a, model: gpt2, gpu: t4, expect: fit}]\n", "did you mean fits"),
        ("version: 1\nversion: 1\njobs: [{name: a, model: gpt2, gpu: t4}]\n", "version"),
        ("version: 1\njobs: [{name: a, model: gpt2, model: gpt2, gpu: t4}]\n", "model"),
        ("version: 1\njobs: [{name: a, model: [gpt2, gpu: t4}]\n", "jobs.yaml:2"),
        ("version: 1\njobs:\n\t- name: a\n", "jobs.yaml:3:1"),
    ],
)
def test_a_broken_file_is_2_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(text)
    for command in ("check", "validate"):
        ran = refused(command, file, "--format", "json")
        assert words in ran.err
        problems = valid("error", ran.document)["error"]["problems"]
        assert {problem["file"] for problem in problems} == {str(file)}


def test_all_problems_of_a_file_come_at_once_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\njobs:\n"
        "  - {name: a, model: gpt2, gpu: t4, sequence_length: -1}\n"
        "  - name: b\n    model: gpt2\n    gpu: t4\n    optimizr: adamw\n    reserve: 3\n"
        "  - {name: c, model: gpt2, gpu: {name: x, memory: 24 G}, max_utilization: 2}\n"
    )
    ran = refused("check", file, "--format", "json")
    problems = valid("error", ran.document)["error"]["problems"]
    assert [problem["line"] for problem in problems] == [3, 7, 8, 9, 9]
    assert [problem["key"] for problem in problems] == [
        *("jobs.0.sequence_length", "jobs.1.optimizr", "jobs.1.reserve", "jobs.2.gpu.memory", "jobs.2.max_utilization")
    ]


@pytest.mark.sweep
@pytest.mark.contract
def test_a_gate_looks_for_remedies_only_when_it_is_asked_and_finds_those_of_fit(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        "version: 1\njobs:\n- {name: large, model: gpt2-xl, gpu: v100, micro_batch_size: 32}\n"
        "- {name: small, model: gpt2, gpu: v100}\n",
        "utf-8",
    )
    without, with_them = (
        run("check", str(file), *more, "--format", "json").document["results"] for more in ((), ("--remedies",))
    )
    assert [row["remedies"] for row in without] == [None, []]
    alone = fit("-m", "gpt2-xl", "-g", "v100", "--micro-batch", "32")
    assert with_them[0]["remedies"] == alone["remedies"] != []
    assert {key: without[0][key] for key in ("verdict", "peak", "recommended")} == {
        key: alone[key] for key in ("verdict", "peak", "recommended")
    }
    assert f"fits with {alone['remedies'][0]['option']}" in run("check", str(file), "--remedies").out.replace("\n", " ")


def test_a_switch_or_a_gpu_may_stand_beside_the_files(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(
        "base_model: gpt2\nsequence_len: 512\nmicro_batch_size: 1\nadapter: lora\nlora_r: 8\nlora_target_linear: true\n"
    )
    typed, meant = run("check", file, "v100", "strict"), run("check", file, "--gpu", "v100", "--strict")
    assert (typed.code, typed.out) == (meant.code, meant.out)
    assert "'v100' is read as --gpu v100, 'strict' as --strict" in typed.err
