"""The formats beside text and JSON: how they look, that they can be read back, and that they say what JSON says."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from vramplan import results as fit_documents
from vramplan.errors import Problem
from vramplan.report import csv as rows_of
from vramplan.report import github, json, junit, markdown
from vramplan.report import yaml as written
from vramplan.report.numbers import gib_against, gib_down, gib_up, text_of
from vramplan.results import FitResult
from vramplan.results.listings import CheckRow

NASTY = "a|b <b>&amp; `x` *y* _z_ [l](http://e) 100% \x1b[31m\x00\x9f\r\n::error::x,y:z \ud800\ufffe 模型"
ANSWERS = {
    "fit": "examples",
    "check": "check_rows",
    "validate": "validate_rows",
    "gpus": "gpu_rows",
    "models": "model_rows",
    "profile": "profile",
}
SUFFIXES = {"csv": "csv", "markdown": "md", "junit": "junit.xml", "github": "github.txt"}
ALL = [(kind, name) for kind in ANSWERS for name in ("json", "yaml", "csv", "markdown")]
ALL += [("check", "junit"), ("check", "github")]


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    found = {kind: request.getfixturevalue(name) for kind, name in ANSWERS.items()}
    found["check"] = placed(named(found["check"]))
    found["validate"] = named(found["validate"])
    found["fit"] = found["fit"]["does not fit"]
    return found


def named(rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results are called as their jobs are."""
    return tuple(dataclasses.replace(row, result=row.result and row.result._replace(name=row.name)) for row in rows)


def placed(rows: tuple[CheckRow, ...]) -> tuple[CheckRow, ...]:
    return tuple(dataclasses.replace(row, file="jobs.yaml", line=4 * n + 3) for n, row in enumerate(rows))


def document(kind: str, answer: Any) -> dict[str, Any]:
    made: dict[str, Any] = getattr(json, f"{kind}_document")(answer, **({"exit_code": 3} if kind == "fit" else {}))
    return made


def rendered(kind: str, name: str, answer: Any) -> str:
    if name in ("json", "yaml"):
        dumps = {"json": json.dumps, "yaml": written.dumps}[name]
        return dumps(document(kind, answer))
    text: str = getattr(import_module(f"vramplan.report.{name}"), f"render_{kind}")(answer)
    return text


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def cell(value: Any) -> str:
    """A value of the JSON document as a cell has it."""
    if isinstance(value, list):
        return "; ".join(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.snapshot
@pytest.mark.parametrize(("kind", "name"), ALL, ids=lambda word: word)
def test_formats(kind: str, name: str, answers: Any, golden: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json, fit_documents):
        monkeypatch.setattr(module, "__version__", "0.0.0")
    golden(f"{kind}.{SUFFIXES.get(name, name)}", rendered(kind, name, answers[kind]))


# One truth


@pytest.mark.parametrize("kind", ANSWERS)
def test_yaml_is_the_json_document(kind: str, answers: Any) -> None:
    text = rendered(kind, "yaml", answers[kind])
    assert text.isascii()
    assert yaml.safe_load(text) == document(kind, answers[kind])
    assert list(yaml.safe_load(text)) == list(document(kind, answers[kind]))


def test_every_answer_is_the_same_in_yaml(example: FitResult) -> None:
    made = document("fit", example)
    assert yaml.safe_load(written.dumps(made)) == made
    assert not re.search(r"[&*]id\d", written.dumps(made))


@pytest.mark.parametrize(
    "text", ["no", "1e3", "0o17", "12:30:00", "null", "", "=", "<<", "- x", "a: b", "#", "2026-1-1"]
)
def test_text_stays_text_in_yaml(text: str) -> None:
    line = written.dumps({"key": text})
    assert yaml.safe_load(line) == {"key": text}
    if text and text[0].isdigit():
        assert line == f"key: '{text}'\n"


def test_csv_of_a_fit_is_the_ladder(example: FitResult) -> None:
    made = document("fit", example)
    found = read_csv(rendered("fit", "csv", example))
    assert len(found) == len(made["alternatives"])
    for row, alternative in zip(found, made["alternatives"], strict=True):
        assert {key: row[key] for key in alternative} == {key: cell(value) for key, value in alternative.items()}
        assert row["usable_bytes"] == str(made["usable_bytes"])
        recommended = alternative["activation_checkpointing"] == made["recommended"]["activation_checkpointing"]
        assert row["recommended"] == cell(recommended)


@pytest.mark.parametrize(
    ("kind", "key"), [("check", "results"), ("validate", "results"), ("gpus",) * 2, ("models",) * 2]
)
def test_csv_has_the_values_of_json(kind: str, key: str, answers: Any) -> None:
    things = document(kind, answers[kind])[key]
    found = read_csv(rendered(kind, "csv", answers[kind]))
    assert len(found) == len(things)
    for row, thing in zip(found, things, strict=True):
        known = {**thing, **thing.get("peak", {})}
        known["error"] = known["error"]["message"].replace("\n", "; ") if "error" in known else None
        assert row == {column: cell(known.get(column)) for column in row}
        if kind in ("gpus", "models"):
            assert set(row) == set(thing)


def test_csv_of_a_profile_has_every_field(answers: Any) -> None:
    fields = document("profile", answers["profile"])["fields"]
    found = {row["key"]: row for row in read_csv(rendered("profile", "csv", answers["profile"]))}
    assert list(found) == list(fields)
    assert found["memory"]["value"] == str(fields["memory"]["value"])
    assert found["memory"]["source_url"] == fields["memory"]["source"]["url"]


def test_junit_has_the_figures_and_the_verdicts_of_json(answers: Any) -> None:
    made = document("check", answers["check"])
    root = ElementTree.fromstring(junit.render_check(answers["check"]))
    (suite,) = root
    for element in (root, suite):
        counts = {key: int(element.attrib[key]) for key in ("tests", "failures", "errors")}
        summary = made["summary"]
        assert counts == {"tests": summary["total"], "failures": summary["failed"], "errors": summary["errors"]}
    assert len(suite) == len(made["results"])
    for case, result in zip(suite, made["results"], strict=True):
        assert case.attrib["name"] == result["name"]
        assert case.attrib["file"] == "jobs.yaml"
        assert (case.find("error") is not None) == ("error" in result)
        assert (case.find("failure") is not None) == (not result["passed"] and "error" not in result)
        values = {item.attrib["name"]: item.attrib["value"] for item in case.iter("property")}
        if "error" not in result:
            assert values == {
                "verdict": result["verdict"],
                "device_bytes": str(result["peak"]["device_bytes"]),
                "usable_bytes": str(result["usable_bytes"]),
            }


def gib(result: dict[str, Any]) -> tuple[str, str]:
    device, usable = result["peak"]["device_bytes"], result["usable_bytes"]
    return text_of(gib_against(device, usable)), text_of(gib_down(usable))


def test_github_annotates_failures_errors_and_tight_passes_on_their_lines(answers: Any) -> None:
    results = document("check", answers["check"])["results"]
    lines = github.render_check(answers["check"]).splitlines()
    assert [line.split()[0] for line in lines] == ["::warning", "::error", "::error"]
    for line, place in zip(lines, (1, 2, 3), strict=True):
        assert f"file=jobs.yaml,line={4 * place + 3},title={results[place]['name']}%3A " in line
        if "error" not in results[place]:
            device, usable = gib(results[place])
            assert f"{device} of {usable} GiB usable" in line
    assert "jobs.yaml:12:5: model: unknown model 'gtp2' (did you mean gpt2?)%0Ajobs.yaml:13:5" in lines[2]


def tables(text: str) -> list[list[str]]:
    """The cells of all rows of all tables, without headings and rules."""
    lines = text.splitlines()
    kept = [line for n, line in enumerate(lines) if line.startswith("| ") and not lines[n - 1 : n + 2].count("---")]
    cells = [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in kept]
    assert all(len(row) == len(cells[n - 1]) or row[0] for n, row in enumerate(cells))
    return [row for row in cells if not set(row[0]) <= set("-:")]


def test_markdown_of_a_fit_has_the_figures_of_json(example: FitResult) -> None:
    made = document("fit", example)
    text = markdown.render_fit(example)
    device, usable = gib(made)
    assert f"**{device} of {usable} GiB per GPU**" in text
    shown = {row[0].strip("*"): row[1].strip("*") for row in tables(text)}
    assert shown["device"] == device
    assert float(shown["allocated"]) == pytest.approx(made["peak"]["allocated_bytes"] / 2**30, abs=0.0101)
    names = [part["name"] for part in made["components"] if part["bytes"]]
    parts = [shown[markdown.text(name)] for name in names]
    assert round(sum(float(part) for part in parts), 2) == float(shown["allocated"])
    for alternative in made["alternatives"]:
        (row,) = (
            row for row in tables(text) if row[0].strip("*") == markdown.text(alternative["activation_checkpointing"])
        )
        assert row[2] == str(alternative["micro_batch_size"])
        assert row[4] == text_of(gib_against(alternative["device_bytes"], made["usable_bytes"]))
        assert row[5] == str(alternative["largest_micro_batch_size"])
    for item in made["assumptions"]:
        assert any(row[0] == item["key"] and row[2] == markdown.text(item["why"]) for row in tables(text))
    assert ("<details>" in text) == bool(made["assumptions"])


def test_markdown_of_a_check_has_the_figures_of_json(answers: Any) -> None:
    made = document("check", answers["check"])
    found = {row[1]: row for row in tables(markdown.render_check(answers["check"]))}
    for result in made["results"]:
        row = found[result["name"]]
        assert tuple(row[2:4]) == (("-", "-") if "error" in result else gib(result))
    assert "**4 jobs:** 2 passed, 1 failed, 1 error; 1 tight" in markdown.render_check(answers["check"])


def test_markdown_of_a_validation_has_the_figures_of_json(answers: Any) -> None:
    found = {row[0]: row for row in tables(markdown.render_validate(answers["validate"]))}
    for result in document("validate", answers["validate"])["results"]:
        row = found[result["name"]]
        sizes = [result["predicted_bytes"], result["measured_bytes"]]
        assert row[3:5] == ["-" if size is None else text_of(gib_up(size)) for size in sizes]
        error = result["relative_error"]
        assert row[5] == ("-" if error is None else f"{100 * error:+.1f}%")


# Names from outside


@pytest.fixture
def nasty(check_rows: Any, examples: Any) -> tuple[CheckRow, ...]:
    renamed = [dataclasses.replace(row, name=NASTY, file=NASTY, line=1, reasons=(NASTY,)) for row in check_rows]
    broken = dataclasses.replace(renamed[-1], problems=(Problem(NASTY), Problem(NASTY)))
    return named((*renamed[:-1], broken))


def test_junit_is_xml_whatever_a_job_is_called(nasty: tuple[CheckRow, ...]) -> None:
    text = junit.render_check(nasty)
    assert text.isascii()
    names = {case.attrib["name"] for case in ElementTree.fromstring(text).iter("testcase")}
    assert names == {"a|b <b>&amp; `x` *y* _z_ [l](http://e) 100% [31m  ::error::x,y:z  模型"}


def test_an_annotation_is_one_line_whatever_a_job_is_called(nasty: tuple[CheckRow, ...]) -> None:
    lines = github.render_check(nasty).split("\n")
    assert [line[:8] for line in lines] == ["::warnin", "::error ", "::error ", ""]
    for line in lines[:-1]:
        assert line.isprintable()
        given, message = re.fullmatch(r"::\w+ (.*?)::(.*)", line).groups()  # type: ignore[union-attr]
        assert [part.split("=")[0] for part in given.split(",")] == ["file", "line", "title"]
        assert not re.search(r"%(?!25|0D|0A|3A|2C)", given + message)
        assert "100%25 " in message


def test_a_row_of_csv_stays_a_row_whatever_a_job_is_called(nasty: tuple[CheckRow, ...]) -> None:
    text = rows_of.render_check(nasty)
    shown = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in NASTY)
    assert {row["name"] for row in read_csv(text)} == {shown}
    assert text.startswith("name,passed,exit_code,")
    assert text.endswith("\n")
    assert "\r\n" not in text.replace(NASTY, "")


def test_a_row_of_markdown_stays_a_row_whatever_a_job_is_called(nasty: tuple[CheckRow, ...]) -> None:
    text = markdown.render_check(nasty)
    assert {len(row) for row in tables(text)} == {6}
    assert "<b>" not in text
    assert len(text.splitlines()) == 4 + len(nasty)


def test_yaml_can_be_read_whatever_a_job_is_called(nasty: tuple[CheckRow, ...]) -> None:
    names = {result["name"] for result in yaml.safe_load(rendered("check", "yaml", nasty))["results"]}
    assert names == {NASTY.replace("\ud800", "?")}


def test_a_job_from_standard_input_has_no_file(check_rows: Any) -> None:
    assert all("file" not in case.attrib for case in ElementTree.fromstring(junit.render_check(check_rows)).iter())
    assert github.render_check(check_rows).startswith("::warning title=with another tenant%3A tight::")


def test_nothing_is_still_a_document() -> None:
    assert read_csv(rows_of.render_check(())) == []
    assert github.render_check(()) == ""
    assert ElementTree.fromstring(junit.render_check(())).attrib["tests"] == "0"
    assert markdown.render_gpus(()).count("\n") == 2


@pytest.mark.contract
@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1+1", "@SUM(A1)", "-2+3", " =1", "\x1b[31mred"])
def test_no_text_of_csv_is_a_formula_or_moves_the_cursor(name: str) -> None:
    text = rows_of.written(("a", "b", "c"), [{"a": name, "b": [name], "c": -5}])
    first, second, number = list(csv.reader(text.splitlines()))[1]
    for text in (first, second):
        assert text.lstrip()[0] not in "=+-@"
        assert text.isprintable()
        assert text.removeprefix("'") == name.replace("\x1b", "?")
    assert number == "-5"
