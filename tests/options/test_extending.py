"""The worked example of docs/extending.md: with its row alone everything that is made from the table knows the key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from tests.cli.running import run
from tests.options import made
from vramplan.catalog import document, runtimes
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Fields, Sink
from vramplan.cli import commands
from vramplan.cli.app import app
from vramplan.cli.completion import complete
from vramplan.errors import InputError
from vramplan.job import build_any_job, build_job, check_keys, job_to_dict
from vramplan.job.given.read import read_job
from vramplan.job.resolver import Resolver
from vramplan.job.runtime import take_defaults
from vramplan.options import option, table
from vramplan.options.flags import arguments_of
from vramplan.options.table import sections
from vramplan.values.job import ResolvedJob

PAGE = made.DOCS / "extending.md"
(ROW,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
KEY, FLAG = "router_dtype", "--router-dtype"
JOB = {"model": "gpt2", "gpu": "a100"}


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[option.Option]:
    """The row of the page at the end of the table, for one test."""
    found: option.Option = eval(ROW, {**vars(option), **vars(sections)})
    monkeypatch.setattr(table, "TABLE", (*table.TABLE, found))
    monkeypatch.setattr(commands, "build", getattr(commands.build, "__wrapped__", commands.build))  # not remembered
    by_group = (table.inside, table.nullable_last)
    looked_up = (table._by_key, *by_group, table.absent, table.parameters, table.profile_fields, table.of_one_runtime)
    for one in looked_up:
        one.cache_clear()
    yield found
    monkeypatch.undo()
    for one in looked_up:
        one.cache_clear()


def fields_of(job: dict[str, Any]) -> Fields:
    node = document.from_value(job)
    assert isinstance(node, Mapping)
    return Fields(node, Sink(None))


def test_the_reader_and_the_draft_know_it() -> None:
    assert read_job(fields_of(JOB), in_file=False).router_dtype is None  # type: ignore[attr-defined]
    given = read_job(fields_of({**JOB, KEY: "bf16"}), in_file=False)
    assert given.router_dtype == "bf16"  # type: ignore[attr-defined]


def test_a_wrong_word_is_found_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(f"version: 1\njobs:\n  - {{name: a, model: gpt2, gpu: a100, {KEY}: bf17}}\n", "utf-8")
    ran = run("check", str(file))
    assert ran.code == 2
    assert re.search(rf"jobs\.yaml:3:\d+: jobs\.0\.{KEY}: 'bf17' is not a known value \(did you mean bf16\?\)", ran.err)


def test_the_command_line_has_it() -> None:
    shown = next(one for one in commands.build("fit").params if one.name == KEY)
    assert (shown.opts, shown.metavar) == ([FLAG], "NAME")
    assert f"`{shown.help}`" in PAGE.read_text("utf-8")
    assert run("timeline", "--help-all").out.count(FLAG) == 1
    assert FLAG not in run("timeline", "--help").out
    assert "bf17" in run("fit", "-m", "gpt2", "-g", "a100", FLAG, "bf17").err


def test_shells_complete_it_and_remedies_show_it() -> None:
    assert [word.text for word in complete(typer.main.get_command(app), ["fit", FLAG, ""])] == ["fp32", "bf16"]
    assert arguments_of({KEY: "bf16"}) == [FLAG, "bf16"]


def test_a_runtime_profile_has_it_as_a_default(row: option.Option) -> None:
    read = runtimes._default(row)
    assert read(fields_of({KEY: "bf16"}), KEY) == "bf16"
    wrong = fields_of({KEY: "fp8"})
    assert read(wrong, KEY) is None
    assert wrong.sink.problems
    for given, taken in (({}, "bf16"), ({KEY: "fp32"}, "fp32")):
        resolver = Resolver(read_job(fields_of({**JOB, **given}), in_file=False), None)  # type: ignore[arg-type]
        runtime = build_job(JOB).runtime._replace(defaults={KEY: "bf16"})
        take_defaults(resolver, runtime, None, None)
        assert resolver.raw.router_dtype == taken  # type: ignore[attr-defined]
        assert [one.key for one in resolver.assumptions] == ([] if given else [KEY])


def test_the_textbook_refuses_what_is_not_the_default() -> None:
    job = {**JOB, "runtime": "textbook"}
    assert build_any_job({**job, KEY: "fp32"}) == build_any_job(job)
    with pytest.raises(InputError, match=f"{KEY}: no equation of the textbook looks at it"):
        build_any_job({**job, KEY: "bf16"})


def test_the_echo_has_it_once_the_job_has() -> None:
    class Extended(ResolvedJob):
        router_dtype = "bf16"

    resolved = build_job({**JOB, KEY: "bf16"})
    echoed = job_to_dict(Extended(*resolved))
    assert echoed[KEY] == "bf16"
    check_keys({key: value for key, value in echoed.items() if value is not None})


def test_what_is_made_again_has_it() -> None:
    validator = Draft202012Validator(made.schema()["$defs"]["job"])
    assert validator.is_valid({KEY: "bf16"})
    assert not validator.is_valid({KEY: "fp8"})
    assert f"    {KEY}: str | None\n" in made.draft()
    assert made.keys().count(f"    {KEY}: str | None\n") == 2
    line = f"| `{KEY}` | `{FLAG}` | `fp32`, `bf16` | `fp32` | Element type in which tokens are routed to experts. "
    assert line in made.job_format()
