"""The answers of `vramplan profiles`: how they look, and that their documents have the schemas."""

from __future__ import annotations

import csv
import io
import json
from importlib import import_module
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.report.profile_answers import ANSWERS
from vramplan.report import yaml
from vramplan.report.json import schema
from vramplan.report.lines import to_plain, width_of

KINDS = tuple(ANSWERS)
ROWS = {"lint": "findings", "diff": "fields", "path": "folders"}


def module(kind: str) -> Any:
    return import_module(f"vramplan.report.profiles.{kind}")


@pytest.mark.snapshot
@pytest.mark.parametrize("kind", KINDS)
def test_each_format(kind: str, golden: Any) -> None:
    answer = ANSWERS[kind]
    golden(f"profile-{kind}", to_plain(module(kind).text(answer, width=80)))
    golden(f"profile-{kind}.csv", module(kind).csv(answer))
    golden(f"profile-{kind}.md", module(kind).markdown(answer))
    golden(f"profile-{kind}.yaml", yaml.dumps(module(kind).document(answer)))


@pytest.mark.parametrize("kind", KINDS)
def test_no_line_is_wider_than_asked(kind: str) -> None:
    for width in range(60, 161):
        assert max(map(width_of, module(kind).text(ANSWERS[kind], width=width))) <= width
    assert to_plain(module(kind).text(ANSWERS[kind], width=None)).isascii()


@pytest.mark.parametrize("kind", KINDS)
def test_the_document_has_its_schema_and_every_key(kind: str) -> None:
    document = json.loads(json.dumps(module(kind).document(ANSWERS[kind])))
    validator = Draft202012Validator(schema(f"profile-{kind}"))
    assert not list(validator.iter_errors(document))
    for key in document:
        assert list(validator.iter_errors({name: value for name, value in document.items() if name != key})), key


@pytest.mark.parametrize("kind", ROWS)
def test_csv_says_what_the_document_says(kind: str) -> None:
    rows = list(csv.DictReader(io.StringIO(module(kind).csv(ANSWERS[kind]), newline="")))
    document = module(kind).document(ANSWERS[kind])[ROWS[kind]]
    assert len(rows) == len(document)
    for row, entry in zip(rows, document, strict=True):
        for key in set(row) & set(entry):
            value = entry[key]
            text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            assert row[key] == ("; ".join(value) if isinstance(value, list) else text), key
