"""The words of a key are the same wherever they stand: help, reader, completion, runtime profiles, schema."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from tests.options.made import schema
from vramplan.catalog import document, runtimes
from vramplan.catalog.document import Mapping
from vramplan.catalog.fields import Fields, Sink
from vramplan.cli.app import app
from vramplan.cli.commands import build
from vramplan.cli.completion import complete
from vramplan.errors import InputError
from vramplan.job import build_any_job, check_keys, job_to_dict
from vramplan.options import table
from vramplan.options.option import COUNT, FLAG, TEXTS, Option

WORDED = [option for option in table.TABLE if option.words]
OFFERED = [option for option in WORDED if option.options]
FIELDS = [(field, option) for field, option in table.profile_fields().items() if option.words]
COMMAND = build("fit")
NONSENSE = "no-such-word"


def written(word: str) -> str:
    """A value of a known word: `every:K` as `every:2`."""
    head, colon, rest = word.partition(":")
    return word if not colon or "[" in rest else f"{head}:2"


def job_with(option: Option, value: Any) -> dict[str, Any]:
    """A job that has nothing but this key, and the runtime that it belongs to."""
    held = [value] if option.kind == TEXTS else value
    job = {option.group: {option.name: held}} if option.group else {option.name: held}
    return job | ({"runtime": option.only} if option.only else {})


def problems(option: Option, value: Any) -> list[str]:
    """What the reader finds wrong with the value, or the resolver with the runtime."""
    try:
        check_keys(job_with(option, value))
        if option.key == "runtime":  # known once its profile is looked up
            build_any_job({"model": "gpt2", "gpu": "a100", "runtime": value})
    except InputError as error:
        return [one.message for one in error.problems if one.key == option.key]
    return []


@pytest.mark.parametrize("option", WORDED, ids=lambda one: one.key)
def test_the_reader_takes_the_words_and_no_other(option: Option) -> None:
    for word in option.words:
        assert problems(option, written(word)) == [], word
    assert problems(option, NONSENSE)


@pytest.mark.parametrize("option", OFFERED, ids=lambda one: one.key)
def test_the_help_lists_the_words(option: Option) -> None:
    shown = next(one for one in COMMAND.params if one.name == option.parameter)
    assert set(option.options) == set(shown.opts)
    listed = shown.help.rpartition(": ")[2].removesuffix(".")
    assert re.split(r", (?!\[)", listed) == list(option.words)


@pytest.mark.parametrize("option", OFFERED, ids=lambda one: one.key)
def test_the_shell_is_offered_the_words(option: Option) -> None:
    more = ["--runtime", option.only] if option.only else []
    offered = [word.text for word in complete(typer.main.get_command(app), ["fit", *more, option.option, ""])]
    assert offered == [re.sub(r":.*", ":", word) for word in option.words]


@pytest.mark.parametrize("option", [one for one in OFFERED if one.kind == TEXTS], ids=lambda one: one.key)
def test_a_list_is_offered_what_it_does_not_have(option: Option) -> None:
    first, *rest = option.words
    offered = complete(typer.main.get_command(app), ["fit", option.option, f"{first},"])
    assert [word.text for word in offered] == [f"{first},{word}" for word in rest]


@pytest.mark.parametrize(("field", "option"), FIELDS, ids=lambda part: part if isinstance(part, str) else part.key)
def test_a_runtime_profile_takes_the_words(field: str, option: Option) -> None:
    def found(value: Any) -> tuple[Any, list[Any]]:
        node = document.from_value({field: value})
        assert isinstance(node, Mapping)
        sink = Sink(None)
        return runtimes._READERS[field](Fields(node, sink), field), sink.problems

    for word in (*option.words, *option.profile_words):
        assert found(written(word)) == (int(word) if word.isdigit() else written(word), [])
    assert found(NONSENSE)[1]


@pytest.mark.parametrize("option", WORDED, ids=lambda one: one.key)
def test_the_schema_takes_the_words_and_no_other(option: Option) -> None:
    validator = Draft202012Validator(schema()["$defs"]["job"])
    for word in option.words:
        value = int(word) if option.kind == COUNT else written(word)
        assert validator.is_valid(job_with(option, value)), word
    assert not validator.is_valid(job_with(option, NONSENSE))


def test_the_schema_takes_what_the_program_echoes_and_finds_what_it_finds() -> None:
    validator = Draft202012Validator(schema())
    Draft202012Validator.check_schema(schema())
    echoed = [
        job_to_dict(build_any_job(job))
        for job in (
            {"model": "gpt2", "gpu": "a100"},
            {"model": "mixtral-8x7b", "gpu": "h100", "adapter": {"kind": "lora"}, "frozen": ["lora_A"]},
            {"model": "gpt2", "gpu": "a100", "precision": "mixed-bf16", "parallel": {"data": 4, "sharding": "zero3"}},
            {"model": "gpt2", "gpu": "v100", "runtime": "textbook", "activation_model": "book"},
        )
    ]
    for job in echoed:
        assert not list(validator.iter_errors({"version": 1, "jobs": [job]}))
    for wrong in (
        *({"sequence_length": 0}, {"dropout": 1}, {"compile": "yes"}, {"max_utilization": 0}, {"nam": "x"}),
        *({"parallel": {"dat": 2}}, {"adapter": {"rank": 1.5}}, {"offload": ["x"]}, {"reserve": True}),
    ):
        assert not validator.is_valid({"version": 1, "jobs": [{**echoed[0], **wrong}]}), wrong
        with pytest.raises(InputError):
            check_keys({**echoed[0], **wrong})


@pytest.mark.parametrize("key", [key for key in runtimes.ONLY_KEYS if key != "family"])
def test_what_a_runtime_has_is_said_in_the_words_of_the_key(key: str) -> None:
    option = table.find(runtimes.ONLY_OF.get(key, key))

    def found(value: list[str]) -> list[Any]:
        node = document.from_value({"value": value})
        assert isinstance(node, Mapping)
        sink = Sink(None)
        runtimes._READERS[runtimes.ONLY + key](Fields(node, sink), "value")
        return sink.problems

    assert found([*map(written, option.words), *option.words, "none"]) == []
    assert found([option.words[0], NONSENSE])


def test_every_flag_has_both_options() -> None:
    for option in table.TABLE:
        if option.kind == FLAG:
            shown = next(one for one in COMMAND.params if one.name == option.parameter)
            assert (shown.opts, shown.secondary_opts) == ([option.option], [option.negation])


def test_the_table_names_each_thing_once() -> None:
    for names in (
        [option.key for option in table.TABLE],
        [option.parameter for option in table.TABLE if option.options],
        [flag for option in table.TABLE for flag in option.options],
        [option.attribute for option in table.TABLE if option.attribute],
        [field for option in table.TABLE for field in option.profile],
    ):
        assert len(names) == len(set(names)), names


@pytest.mark.parametrize("option", table.TABLE, ids=lambda one: one.key)
def test_a_row_is_whole(option: Option) -> None:
    assert re.match(r"[A-Za-z].*\.$", option.help), "one sentence"
    assert option.section in table.SECTIONS
    assert option.group in ("", *table.GROUPS)
    assert set(option.textbook if isinstance(option.textbook, tuple) else ()) <= set(option.words)
    assert set(option.sharding) <= set(table.find("parallel.sharding").words)
