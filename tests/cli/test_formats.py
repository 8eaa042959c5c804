"""The formats beside text and JSON on the command line: exit codes, a clean stdout, and who has which."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.cli.running import process, refused, run, valid, write_jobs

EVERYWHERE = ("text", "json", "yaml", "csv", "markdown")
OF_CHECK = (*EVERYWHERE, "junit", "github")
FITS = {"model": "gpt2-xl", "gpu": "v100"}
TIGHT = {**FITS, "reserve": "2 GiB"}
NO = {"model": "gpt2-xl", "gpu": "t4"}
ERROR = {"model": "gpt2-xxl", "gpu": "t4"}
COMMANDS = (
    ("fit", "-m", "gpt2-xl", "-g", "v100"),
    ("gpus",),
    ("models",),
    ("gpus", "show", "v100"),
    ("models", "show", "gpt2"),
)


def read_back(name: str, text: str) -> Any:
    """What a reader of the format makes of it; anything beside the document is an error."""
    if name == "yaml":
        return yaml.safe_load(text)
    if name == "csv":
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert len({len(row) for row in rows}) == 1
        return rows
    if name == "junit":
        return ElementTree.fromstring(text)
    if name == "github":
        assert all(line.startswith("::") for line in text.splitlines())
    if name == "markdown":
        assert "| --- |" in text
    return text


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", OF_CHECK)
@pytest.mark.parametrize(
    ("job", "code", "strict_code"),
    [(FITS, 0, 0), (TIGHT, 0, 4), (NO, 3, 3), (ERROR, 2, 2)],
    ids=["fits", "tight", "does not fit", "error"],
)
def test_the_exit_code_of_a_gate_is_that_of_every_format(
    job: dict[str, Any], code: int, strict_code: int, name: str, tmp_path: Path
) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", job)
    for strict, wanted in (((), code), (("--strict",), strict_code)):
        ran = run("check", file, "--format", name, *strict)
        assert ran.code == wanted
        assert (ran.err == "") == (code != 2)
        read_back(name, ran.out)
        assert run("check", file, "--format", name, "--quiet", *strict).out == ""
        printed = run("check", file, "--format", name, "--print", "summary.total", *strict)
        assert (printed.code, printed.out) == (wanted, "1\n")


@pytest.mark.sweep(12)
@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_every_format(words: tuple[str, ...], name: str) -> None:
    ran = run(*words, "--format", name)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("\n")
    assert read_back(name, ran.out)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_validation_has_every_format(name: str, tmp_path: Path) -> None:
    measured = {"measured": {"peak_bytes": 29190941696, "metric": "allocated", "outcome": "fits"}}
    file = write_jobs(tmp_path / "cases.yaml", {**FITS, **measured}, ERROR)
    ran = run("validate", file, "--format", name)
    assert ran.code == 2
    assert ran.err.startswith("error: job 1: ")
    assert read_back(name, ran.out)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_yaml_is_the_json_answer(words: tuple[str, ...]) -> None:
    assert yaml.safe_load(run(*words, "--format", "yaml").out) == run(*words, "--format", "json").document


def test_a_format_that_nobody_knows_names_those_of_the_command(tmp_path: Path) -> None:
    file = write_jobs(tmp_path / "jobs.yaml", FITS)
    for words in (("validate", file), *COMMANDS):
        err = refused(*words, "--format", "marcdown").err
        assert "did you mean markdown? text, json, yaml, csv or markdown" in err
        assert "junit" not in err
        for name in ("junit", "github"):
            assert f"{name!r} is a format of check" in refused(*words, "--format", name).err
    assert "text, json, yaml, csv, markdown, junit or github" in refused("check", file, "--format", "xml").err


def test_bad_input_in_yaml_is_the_error_document() -> None:
    words = ("fit", "-m", "gpt2-xxl", "-g", "v100", "--format")
    ran = refused(*words, "yaml")
    made = valid("error", yaml.safe_load(ran.out))
    assert made == refused(*words, "json").document
    assert ran.err == f"error: {made['error']['message']}\n"


@pytest.mark.parametrize("name", ["csv", "markdown", "junit", "github"])
def test_bad_input_says_nothing_on_stdout_in_the_other_formats(name: str, tmp_path: Path) -> None:
    assert refused("check", tmp_path / "nowhere.yaml", "--format", name).out == ""


def test_an_annotation_stands_on_the_line_of_its_job(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    jobs = ["  - {name: fine, model: gpt2-xl, gpu: v100}", "  - name: too much", "    model: gpt2-xl", "    gpu: t4"]
    text = "\n".join(["version: 1", "jobs:", *jobs, ""])
    file.write_text(text, "utf-8")
    (line,) = run("check", file, "--format", "github").out.splitlines()
    assert line.startswith(f"::error file={file},line=4,title=too much%3A failed::does not fit; ")
    (line,) = run("check", "-", "--format", "github", stdin=text).out.splitlines()
    assert line.startswith("::error title=too much%3A failed::does not fit; ")
    root = ElementTree.fromstring(run("check", file, "--format", "junit").out)
    assert [case.attrib["line"] for case in root.iter("testcase")] == ["3", "4"]


def test_a_name_outside_of_ascii_survives_any_encoding(tmp_path: Path) -> None:
    import os

    file = write_jobs(tmp_path / "jobs.yaml", {**FITS, "name": "größe 模型"})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for name in ("junit", "yaml"):
        done = process("check", file, "--format", name, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        found = read_back(name, done.stdout)
        if name == "junit":
            assert next(found.iter("testcase")).attrib["name"] == "größe 模型"
        else:
            assert found["results"][0]["name"] == "größe 模型"
